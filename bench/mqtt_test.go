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

// idleOverMQTT: devices with nothing to do, each with a connection to the broker.
func idleOverMQTT(s *site, size scale) figures {
	s.brokered(size)
	s.serve(1)
	return s.reporting(size, s.known("d", size.sessions))
}

// transported is what a replica's transport costs, without a decision.
func transported(s *site, size scale) figures {
	s.brokered(size)
	s.helper("transport")
	return s.reporting(size, names("d", size.sessions))
}

// onlyAnswers is the most that the broker and these devices allow.
func onlyAnswers(s *site, size scale) figures {
	s.brokered(size)
	s.helper("answers")
	return s.reporting(size, names("d", size.sessions))
}

// brokered starts the broker, which has a file for each device, as this process does.
func (s *site) brokered(size scale) {
	var files syscall.Rlimit
	s.must(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files))
	if want := uint64(size.sessions + 1000); files.Max < want {
		s.t.Fatalf("a process may open %d files, want %d", files.Max, want)
	}
	files.Cur = files.Max
	s.must(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files)) // said by the program, it holds for those that it starts
	s.broker = servers.MosquittoAsDeployed(s.t)
}

// reporting is devices that report in turn, some of them at a time.
func (s *site) reporting(size scale, devices []string) figures {
	all := make(fleet, len(devices))
	var mu sync.Mutex
	s.atOnce(len(devices), func(i int) {
		one, err := openSession(s.broker.Addr, devices[i], "fleet/v1/"+devices[i]+"/reply")
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
		s.atOnce(len(devices), func(i int) {
			if _, err := all[devices[i]].report(); err != nil {
				s.t.Error(err)
			}
		})
	}
	l := load{devices: devices, each: 1, around: true, span: size.span}
	for range min(4*size.conns, len(devices)/2) {
		l.clients = append(l.clients, all)
	}
	return s.measured(func() figures { return l.run(s, asking) })
}

// undecided says that there is no task, whatever it is asked.
type undecided struct{ devices.Handler }

func (undecided) HandleReport(_ context.Context, _ devices.Caller, r devices.Report) (devices.Reply, error) {
	return devices.Reply{Re: r.ID, Reason: devices.ReasonNone, ReportAfterMS: 30_000}, nil
}

func (undecided) CountReport(string, string, time.Duration) {}

func serveTransport() {
	client, err := mqtt.New(mqtt.Options{URL: "mqtt://" + os.Getenv("BENCH_MQTT"), Handler: undecided{}})
	if err == nil {
		err = client.Start(context.Background())
	}
	if err != nil {
		panic(err)
	}
	for !client.Connected() {
		runtime.Gosched()
	}
	serveHelper(bare) // says that it is ready
}

// serveAnswers gives every report the same answer. It has the dispatcher's subscription,
// and writes what it has to say when nothing more is there to be read.
func serveAnswers() {
	s, err := openSession(os.Getenv("BENCH_MQTT"), "answers", "$share/dispatcher/fleet/v1/+/report")
	if err != nil {
		panic(err)
	}
	go serveHelper(bare) // says that it is ready
	s.in = bufio.NewReaderSize(s.Conn, 64<<10)
	out := bufio.NewWriterSize(s.Conn, 64<<10)
	for packet := uint16(1); ; packet = max(packet+1, 1) {
		kind, err := s.read()
		if err != nil {
			panic(err)
		}
		if kind&0xf0 == publishPacket {
			length := 2 + int(wire.BigEndian.Uint16(s.body))
			device := bytes.TrimSuffix(s.body[2:length], []byte("report"))
			_, id, _ := bytes.Cut(s.body[length+2:], []byte(`"id":"`))
			id, _, _ = bytes.Cut(id, []byte(`"`))
			reply := wire.BigEndian.AppendUint16(text(string(device)+"reply"), packet)
			_, _ = out.Write(packed(publishPacket|qos1, fmt.Appendf(reply, `{"re":"%s","reason":"none","held_ms":0,"report_after_ms":30000}`, id)))
			_, _ = out.Write(packed(pubackPacket, s.body[length:length+2]))
		}
		if s.in.Buffered() == 0 {
			_ = out.Flush()
		}
	}
}
