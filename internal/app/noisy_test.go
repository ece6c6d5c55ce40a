package app

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"github.com/fleetslots/dispatcher/devices"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

const (
	quietDevices = 5
	quietReports = 40 // reports of each quiet device in one measurement
	quietPeriod  = 100 * time.Millisecond
)

// noisySite is a dispatcher with devices that report without pause, and with five other devices.
type noisySite struct {
	*instance
	mqttURL string            // URL of the broker for devices
	tokens  map[string]string // password of each device at the broker
	quiet   []*mqttDevice
}

// noisyNames returns the ids of n noisy devices.
func noisyNames(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint("noisy-", i))
	}
	return ids
}

// serveNoisySite starts the program with Postgres, Redis and a mosquitto at which each device has an account.
func serveNoisySite(t *testing.T, noisy int) *noisySite {
	t.Helper()
	s := &noisySite{tokens: map[string]string{}}
	for _, id := range append(noisyNames(noisy), quietNames()...) {
		s.tokens[id] = "password-of-" + id
	}
	broker := servers.StartMosquittoPasswords(t, s.tokens)
	s.mqttURL = "mqtt://" + broker.Addr
	s.instance, _ = startServing(t, serveConfig(t, sharedPostgres.NewLedger(t), servers.StartRedis(t).URL(), "DISPATCHER_MQTT_URL="+broker.DispatcherURL,
		"DISPATCHER_MQTT_USER="+servers.DispatcherUser, "DISPATCHER_MQTT_PASSWORD="+servers.DispatcherPassword))
	s.connect(t)
	return s
}

// embedNoisySite starts the program in the embedded mode.
func embedNoisySite(t *testing.T, noisy int) *noisySite {
	t.Helper()
	i, d := startDev(t, t.TempDir())
	s := &noisySite{instance: i, mqttURL: d.MQTTURL, tokens: map[string]string{}}
	for _, id := range append(noisyNames(noisy), quietNames()...) {
		s.tokens[id] = d.FleetToken
	}
	s.connect(t)
	return s
}

func quietNames() (ids []string) {
	for i := range quietDevices {
		ids = append(ids, fmt.Sprint("quiet-", i))
	}
	return ids
}

// connect registers all devices, and connects the quiet ones to the broker.
func (s *noisySite) connect(t *testing.T) {
	t.Helper()
	waitForBroker(t, s.instance)
	for id := range s.tokens {
		s.sendReport(t, id, `{"id":"first"}`)
	}
	for _, id := range quietNames() {
		s.quiet = append(s.quiet, newMQTTDevice(t, &DevServer{MQTTURL: s.mqttURL, FleetToken: s.tokens[id]}, devices.ID(id)))
	}
}

// floodOverMQTT lets each noisy device publish reports with this QoS as fast as the broker reads them. The returned function stops the
// devices and returns the number of reports that they sent.
func (s *noisySite) floodOverMQTT(t *testing.T, noisy int, qos byte) (stop func() int64) {
	t.Helper()
	var sent atomic.Int64
	var wait sync.WaitGroup
	var conns []net.Conn
	for _, id := range noisyNames(noisy) {
		conn := s.openRawSession(t, id)
		conns = append(conns, conn)
		reports := rawReports(id, qos)
		wait.Go(func() { _, _ = io.Copy(io.Discard, conn) })
		wait.Go(func() {
			for {
				if _, err := conn.Write(reports); err != nil {
					return
				}
				sent.Add(reportsPerWrite)
			}
		})
	}
	return func() int64 {
		for _, conn := range conns {
			_ = conn.Close()
		}
		wait.Wait()
		return sent.Load()
	}
}

// openRawSession connects a device to the broker without an MQTT library, which would store the reports that the broker does not read.
func (s *noisySite) openRawSession(t *testing.T, id string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.mqttURL, "mqtt://"))
	if err != nil {
		t.Fatal(err)
	}
	connect := packets.NewControlPacket(packets.Connect).(*packets.ConnectPacket) //nolint:forcetypeassert // that is its type
	connect.ProtocolName, connect.ProtocolVersion, connect.CleanSession, connect.ClientIdentifier = "MQTT", 4, true, id
	connect.UsernameFlag, connect.Username, connect.PasswordFlag, connect.Password = true, id, true, []byte(s.tokens[id])
	if err := connect.Write(conn); err != nil {
		t.Fatal(err)
	}
	if answer, err := packets.ReadPacket(conn); err != nil || answer.(*packets.ConnackPacket).ReturnCode != packets.Accepted { //nolint:forcetypeassert // as above
		t.Fatalf("%s: %v, %v", id, answer, err)
	}
	return conn
}

// reportsPerWrite is the number of reports in one write of a noisy device.
const reportsPerWrite = 100

// rawReports returns reportsPerWrite MQTT packets with reports of a device.
func rawReports(id string, qos byte) []byte {
	var out bytes.Buffer
	for n := range uint16(reportsPerWrite) {
		report := packets.NewControlPacket(packets.Publish).(*packets.PublishPacket) //nolint:forcetypeassert // that is its type
		report.Qos, report.MessageID, report.TopicName, report.Payload = qos, n+1, devices.ReportTopic(devices.ID(id)), []byte(`{"id":"again"}`)
		_ = report.Write(&out)
	}
	return out.Bytes()
}

// floodOverHTTP lets each noisy device send reports over one HTTP connection, one after the other without pause.
func (s *noisySite) floodOverHTTP(t *testing.T, noisy int) (stop func() int64) {
	t.Helper()
	var sent atomic.Int64
	var wait sync.WaitGroup
	stopped := make(chan struct{})
	for _, id := range noisyNames(noisy) {
		wait.Go(func() {
			client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
			defer client.CloseIdleConnections()
			for {
				select {
				case <-stopped:
					return
				default:
				}
				request, _ := http.NewRequest(http.MethodPost, s.url+"/v1/devices/"+id+"/report", strings.NewReader(`{"id":"again"}`))
				request.Header.Set("Authorization", "Bearer "+s.fleet)
				response, err := client.Do(request)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, response.Body)
				response.Body.Close()
				sent.Add(1)
			}
		})
	}
	return func() int64 {
		close(stopped)
		wait.Wait()
		return sent.Load()
	}
}

// answered has the answers that quiet devices got.
type answered struct {
	mu      sync.Mutex
	took    []time.Duration
	reasons map[devices.Reason]int
	lost    int // reports without an answer
}

// p90 returns the duration that 90 % of the answers did not exceed.
func (a *answered) p90() time.Duration {
	slices.Sort(a.took)
	return a.took[len(a.took)*9/10]
}

// reportQuietly lets each quiet device send its reports, one after the other, and returns their answers.
func (s *noisySite) reportQuietly(t *testing.T) *answered {
	t.Helper()
	a := &answered{reasons: map[devices.Reason]int{}}
	var wait sync.WaitGroup
	for _, device := range s.quiet {
		wait.Go(func() {
			pause := time.NewTicker(quietPeriod)
			defer pause.Stop()
			for n := range quietReports {
				a.add(device.reportOnce(t, fmt.Sprint("r", n)))
				<-pause.C
			}
		})
	}
	wait.Wait()
	if len(a.took) == 0 {
		t.Fatal("no report was answered")
	}
	return a
}

func (a *answered) add(reply devices.Reply, took time.Duration, arrived bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !arrived {
		a.lost++
		return
	}
	a.took = append(a.took, took)
	a.reasons[reply.Reason]++
}

// reportOnce sends a report with this id, and waits at most 10 s for its answer.
func (m *mqttDevice) reportOnce(t *testing.T, id string) (reply devices.Reply, took time.Duration, arrived bool) {
	t.Helper()
	began := time.Now()
	m.Publish(devices.ReportTopic(m.id), 1, false, fmt.Sprintf(`{"id":%q}`, id))
	for left := 10 * time.Second; left > 0; left = 10*time.Second - time.Since(began) {
		if reply, arrived = m.replyWithin(t, left); arrived && reply.Re == id {
			return reply, time.Since(began), true
		}
	}
	return reply, 0, false
}

func TestNoisyDeviceHarmsNobody(t *testing.T) {
	sites := map[string]func(*testing.T, int) *noisySite{"mosquitto": serveNoisySite, "embedded": embedNoisySite}
	for _, test := range []struct {
		site  string
		via   string
		noisy int
	}{
		{"mosquitto", "1", 1}, {"mosquitto", "0", 1}, {"mosquitto", "http", 1},
		{"embedded", "1", 1}, {"embedded", "0", 1},
		{"mosquitto", "1", 20}, {"mosquitto", "0", 20}, {"mosquitto", "http", 20},
		{"embedded", "1", 20}, {"embedded", "0", 20}, {"embedded", "http", 20},
	} {
		t.Run(fmt.Sprint(test.site, " ", test.via, " ", test.noisy), func(t *testing.T) {
			s := sites[test.site](t, test.noisy)
			before := s.reportQuietly(t)
			began := time.Now()
			var stop func() int64
			if test.via == "http" {
				stop = s.floodOverHTTP(t, test.noisy)
			} else {
				stop = s.floodOverMQTT(t, test.noisy, test.via[0]-'0')
			}
			during := s.reportQuietly(t)
			time.Sleep(time.Until(began.Add(12 * time.Second)))
			rate := float64(stop()) / time.Since(began).Seconds()
			var m []string
			for _, line := range strings.Split(string(s.callOperator(t, http.MethodGet, "/metrics", "")), "\n") {
				if strings.HasPrefix(line, "dispatcher_reports_total") {
					m = append(m, line[24:])
				}
			}
			t.Logf("%.0f/s; p90 %s -> %s, max %s; lost %d, %v; %v", rate, before.p90(), during.p90(), slices.Max(during.took), during.lost, during.reasons, m)
			t.Logf("%s", s.callOperator(t, http.MethodGet, "/v1/events?kind=device.noisy", ""))
		})
	}
}
