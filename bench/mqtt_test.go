package bench

import (
	"bufio"
	"bytes"
	"context"
	wire "encoding/binary" // renamed, because this package has a flag named binary
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/mqtt"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// measureIdleMQTT measures reports of devices that have no tasks. Each device has its own connection to the broker.
func measureIdleMQTT(s *testbed, size scale) figures {
	s.startBroker(size)
	s.startReplicas(1)
	return s.measureMQTTReports(size, s.registerDevices("d", size.mqttDevices))
}

// measureMQTTTransport measures the MQTT transport of a replica alone, without decisions: every report is answered
// with the reply that there is no task.
func measureMQTTTransport(s *testbed, size scale) figures {
	s.startBroker(size)
	s.startHelper("transport")
	return s.measureMQTTReports(size, numberedNames("d", size.mqttDevices))
}

// measureMQTTSubscriber measures the highest rate of reports that the broker and these devices allow. A subscriber that
// only answers replaces the dispatcher.
func measureMQTTSubscriber(s *testbed, size scale) figures {
	s.startBroker(size)
	s.startHelper("answers")
	return s.measureMQTTReports(size, numberedNames("d", size.mqttDevices))
}

// startBroker starts the broker. Both the broker and this process need an open file for each device, so startBroker
// raises the limit of open files.
func (s *testbed) startBroker(size scale) {
	var files syscall.Rlimit
	s.failOnError(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files))
	if want := uint64(size.mqttDevices + 1000); files.Max < want {
		s.t.Fatalf("a process may open %d files, want %d", files.Max, want)
	}
	files.Cur = files.Max
	s.failOnError(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files)) // Set by this program, the limit also applies to the processes that it starts.
	s.broker = servers.StartMosquittoWithLimits(s.t)
}

// measureMQTTReports measures reports over MQTT. The devices report in turn, several of them at the same time.
func (s *testbed) measureMQTTReports(size scale, devices []string) figures {
	all := make(mqttSessions, len(devices))
	var mu sync.Mutex
	s.runConcurrently(len(devices), func(i int) {
		one, err := openMQTTSession(s.broker.Addr, devices[i], "fleet/v1/"+devices[i]+"/reply")
		if err != nil {
			s.t.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		all[devices[i]] = one
	})
	defer func() {
		for _, one := range all {
			one.Close()
		}
	}()
	for range 3 { // each device has reported before the measurement, as in measureReportsWithoutGrant
		if s.t.Failed() {
			return figures{}
		}
		s.runConcurrently(len(devices), func(i int) {
			if _, err := all[devices[i]].exchangeReport(); err != nil {
				s.t.Error(err)
			}
		})
	}
	l := load{devices: devices, stepsPerDevice: 1, wrapsAround: true, span: size.span}
	for range min(4*size.conns, len(devices)/2) {
		l.clients = append(l.clients, all)
	}
	return s.measureCPU(func() figures { return l.run(s, reportIdle) })
}

// noTaskHandler answers every report with the reply that there is no task.
type noTaskHandler struct{ devices.Handler }

func (noTaskHandler) HandleReport(_ context.Context, _ devices.Caller, r devices.Report) (devices.Reply, error) {
	return devices.Reply{Re: r.ID, Reason: devices.ReasonNone, ReportAfterMS: 30_000}, nil
}

func (noTaskHandler) CountReport(string, string, time.Duration) {}

func serveTransport() {
	client, err := mqtt.New(mqtt.Options{URL: "mqtt://" + os.Getenv("BENCH_MQTT"), Handler: noTaskHandler{}})
	if err == nil {
		err = client.Start(context.Background())
	}
	if err != nil {
		panic(err)
	}
	for !client.Connected() {
		runtime.Gosched()
	}
	serveHelper(replyNone) // shows the parent process that this process is ready
}

// serveAnswers answers every report with the same reply. It has the same subscription as the dispatcher. It collects
// replies while more reports can be read, and then sends all collected replies.
func serveAnswers() {
	s, err := openMQTTSession(os.Getenv("BENCH_MQTT"), "answers", "$share/dispatcher/fleet/v1/+/report")
	if err != nil {
		panic(err)
	}
	go serveHelper(replyNone) // shows the parent process that this process is ready
	s.in = bufio.NewReaderSize(s.Conn, 64<<10)
	out := bufio.NewWriterSize(s.Conn, 64<<10)
	for packet := uint16(1); ; packet = max(packet+1, 1) {
		kind, err := s.readPacket()
		if err != nil {
			panic(err)
		}
		if kind&0xf0 == publishPacket {
			length := 2 + int(wire.BigEndian.Uint16(s.body))
			device := bytes.TrimSuffix(s.body[2:length], []byte("report"))
			_, id, _ := bytes.Cut(s.body[length+2:], []byte(`"id":"`))
			id, _, _ = bytes.Cut(id, []byte(`"`))
			reply := wire.BigEndian.AppendUint16(lengthPrefixed(string(device)+"reply"), packet)
			_, _ = out.Write(encodePacket(publishPacket|qos1, fmt.Appendf(reply, `{"re":"%s","reason":"none","held_ms":0,"report_after_ms":30000}`, id)))
			_, _ = out.Write(encodePacket(pubackPacket, s.body[length:length+2]))
		}
		if s.in.Buffered() == 0 {
			_ = out.Flush()
		}
	}
}
