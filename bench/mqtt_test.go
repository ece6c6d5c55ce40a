package bench

import (
	"bufio"
	"bytes"
	"context"
	wire "encoding/binary" // binary is a flag of the test
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

// measureIdleMQTT measures reports of devices without tasks. Each device has a connection to the broker.
func measureIdleMQTT(s *testbed, size scale) figures {
	s.startBroker(size)
	s.startReplicas(1)
	return s.measureMQTTReports(size, s.registerDevices("d", size.mqttDevices))
}

// measureMQTTTransport measures what the MQTT transport of a replica costs without a decision: the answer is always
// that there is no task.
func measureMQTTTransport(s *testbed, size scale) figures {
	s.startBroker(size)
	s.startHelper("transport")
	return s.measureMQTTReports(size, numberedNames("d", size.mqttDevices))
}

// measureMQTTSubscriber measures the highest rate that the broker and these devices allow: a subscriber only answers.
func measureMQTTSubscriber(s *testbed, size scale) figures {
	s.startBroker(size)
	s.startHelper("answers")
	return s.measureMQTTReports(size, numberedNames("d", size.mqttDevices))
}

// startBroker starts the broker, which has a file for each device, as this process does.
func (s *testbed) startBroker(size scale) {
	var files syscall.Rlimit
	s.must(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files))
	if want := uint64(size.mqttDevices + 1000); files.Max < want {
		s.t.Fatalf("a process may open %d files, want %d", files.Max, want)
	}
	files.Cur = files.Max
	s.must(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files)) // said by the program, it holds for those that it starts
	s.broker = servers.StartMosquittoWithLimits(s.t)
}

// measureMQTTReports measures reports of devices that report in turn, some of them at the same time.
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
	for range 3 { // as with idle reports over HTTP
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

// noTaskHandler says that there is no task, whatever it is asked.
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
	serveHelper(replyNone) // says that it is ready
}

// serveAnswers gives every report the same answer. It has the dispatcher's subscription,
// and writes what it has to say when nothing more is there to be read.
func serveAnswers() {
	s, err := openMQTTSession(os.Getenv("BENCH_MQTT"), "answers", "$share/dispatcher/fleet/v1/+/report")
	if err != nil {
		panic(err)
	}
	go serveHelper(replyNone) // says that it is ready
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
