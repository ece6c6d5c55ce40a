package app

import (
	"bytes"
	"encoding/json"
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
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/operators"
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
		"DISPATCHER_MQTT_USER="+servers.DispatcherUser, "DISPATCHER_MQTT_PASSWORD="+servers.DispatcherPassword, "DISPATCHER_REPORT_RATE=20"))
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

// flood makes each noisy device report. If via is "http", the device uses one HTTP connection. Otherwise it uses MQTT, and via is the QoS. If
// pause is 0, a device reports as fast as it can. Otherwise it pauses after each reportsPerWrite reports. The returned function stops the
// devices and returns the number of reports that they sent.
func (s *noisySite) flood(t *testing.T, noisy int, via string, pause time.Duration) (stop func() int64) {
	t.Helper()
	var sent atomic.Int64
	var wait sync.WaitGroup
	stopped := make(chan struct{})
	var conns []net.Conn
	for _, id := range noisyNames(noisy) {
		send := s.senderOverHTTP(id)
		if via != "http" {
			conn := s.openRawSession(t, id)
			reports := rawReports(id, via[0]-'0')
			wait.Go(func() { _, _ = io.Copy(io.Discard, conn) })
			send = func() error {
				_, err := conn.Write(reports)
				return err
			}
			conns = append(conns, conn)
		}
		wait.Go(func() {
			for send() == nil {
				sent.Add(reportsPerWrite)
				select {
				case <-stopped:
					return
				case <-time.After(pause):
				}
			}
		})
	}
	return func() int64 {
		close(stopped)
		for _, conn := range conns {
			_ = conn.Close()
		}
		wait.Wait()
		return sent.Load()
	}
}

// senderOverHTTP returns a function that sends reportsPerWrite reports over one connection, one after the other.
func (s *noisySite) senderOverHTTP(id string) (send func() error) {
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	return func() error {
		for range reportsPerWrite {
			request, err := http.NewRequest(http.MethodPost, s.url+"/v1/devices/"+id+"/report", strings.NewReader(`{"id":"again"}`))
			if err != nil {
				return err
			}
			request.Header.Set("Authorization", "Bearer "+s.fleet)
			response, err := client.Do(request)
			if err != nil {
				return err
			}
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
		}
		client.CloseIdleConnections()
		return nil
	}
}

// openRawSession connects a device to the broker without an MQTT library, which would store the reports that the broker does not read.
func (s *noisySite) openRawSession(t *testing.T, id string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.mqttURL, "mqtt://"))
	must.Succeed(t, err)
	connect := &packets.ConnectPacket{
		FixedHeader: packets.FixedHeader{MessageType: packets.Connect}, ProtocolName: "MQTT", ProtocolVersion: 4, CleanSession: true, ClientIdentifier: id,
		UsernameFlag: true, Username: id, PasswordFlag: true, Password: []byte(s.tokens[id]),
	}
	must.Succeed(t, connect.Write(conn))
	var answer [4]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil || answer != [4]byte{packets.Connack << 4, 2, 0, packets.Accepted} {
		t.Fatalf("%s: %x, %v", id, answer, err)
	}
	return conn
}

// reportsPerWrite is the number of reports in one write of a noisy device.
const reportsPerWrite = 100

// rawReports returns reportsPerWrite MQTT packets with reports of a device.
func rawReports(id string, qos byte) []byte {
	var out bytes.Buffer
	for n := range uint16(reportsPerWrite) {
		report := &packets.PublishPacket{
			FixedHeader: packets.FixedHeader{MessageType: packets.Publish, Qos: qos}, MessageID: n + 1,
			TopicName: devices.ReportTopic(devices.ID(id)), Payload: []byte(`{"id":"again"}`),
		}
		_ = report.Write(&out)
	}
	return out.Bytes()
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

// quietPatience is the time for which a quiet device waits for an answer before it reports again.
const quietPatience = 10 * time.Second

// reportOnce sends a report with this id, and waits for its answer.
func (m *mqttDevice) reportOnce(t *testing.T, id string) (reply devices.Reply, took time.Duration, arrived bool) {
	t.Helper()
	began := time.Now()
	m.Publish(devices.ReportTopic(m.id), 1, false, fmt.Sprintf(`{"id":%q}`, id))
	for left := quietPatience; left > 0; left = quietPatience - time.Since(began) {
		if reply, arrived = m.replyWithin(t, left); arrived && reply.Re == id {
			return reply, time.Since(began), true
		}
	}
	return reply, 0, false
}

// waitForNoisy waits until the events name all noisy devices. It checks that the events name no other device, that the list of noisy
// devices contains noisy-0, and that the metric has their number.
func (s *noisySite) waitForNoisy(t *testing.T, noisy int) {
	t.Helper()
	var list operators.EventList
	await.True(t, "an event device.noisy of each noisy device", func() bool {
		list = operators.EventList{}
		must.Succeed(t, json.Unmarshal(s.callOperator(t, http.MethodGet, "/v1/events?kind=device.noisy", ""), &list))
		return len(list.Events) >= noisy
	})
	var named []string
	for _, e := range list.Events {
		named = append(named, e.Device)
	}
	slices.Sort(named)
	want := noisyNames(noisy)
	if slices.Sort(want); !slices.Equal(named, want) {
		t.Errorf("events name %v, want %v", named, want)
	}
	t.Log(list.Events[0].Detail)
	for _, quiet := range []string{"true", "false"} {
		found := bytes.Contains(s.callOperator(t, http.MethodGet, "/v1/devices?noisy="+quiet, ""), []byte(`"noisy-0"`))
		if found != (quiet == "true") {
			t.Errorf("noisy-0 among the devices with noisy=%s: %t", quiet, found)
		}
	}
	metrics := s.callOperator(t, http.MethodGet, "/metrics", "")
	if !bytes.Contains(metrics, fmt.Appendf(nil, "\ndispatcher_devices_noisy %d\n", noisy)) || !bytes.Contains(metrics, []byte(`reason="over_rate"`)) {
		t.Errorf("the metrics do not show %d noisy devices and their refused reports", noisy)
	}
}

// noisyCase is a site with devices that report far too often.
type noisyCase struct {
	site, via string
	noisy     int
	pause     time.Duration // pause of a noisy device after each reportsPerWrite reports; 0 means no pause
}

func (c noisyCase) String() string { return fmt.Sprintf("%s, %d over %s", c.site, c.noisy, c.via) }

// check checks that all reports of quiet devices are answered, none with busy_server, and that the events name the noisy devices. A few reports
// at the beginning may be lost. check logs the durations.
func (c noisyCase) check(t *testing.T) {
	t.Helper()
	start := serveNoisySite
	if c.site == "embedded" {
		start = embedNoisySite
	}
	s := start(t, c.noisy)
	before, began := s.reportQuietly(t), time.Now()
	stop := s.flood(t, c.noisy, c.via, c.pause)
	defer func() {
		t.Logf("%.0f reports a second", float64(stop())/time.Since(began).Seconds())
	}()
	during := s.reportQuietly(t)
	t.Logf("p90 %s, during the excess %s, max %s, %d lost", before.p90(), during.p90(), slices.Max(during.took), during.lost)
	// With QoS 1 the queue of mosquitto is full for a moment, until the dispatcher receives the reports with QoS 0.
	mayBeLost := 0
	if c.via == "1" && c.noisy > 1 {
		mayBeLost = 2 * quietDevices
	}
	if during.lost > mayBeLost || during.reasons[devices.ReasonNone] != quietDevices*quietReports-during.lost {
		t.Errorf("%d reports of quiet devices were lost; the others were told %v", during.lost, during.reasons)
	}
	s.waitForNoisy(t, c.noisy)
}

// TestNoisyDeviceHarmsNobody checks a site with a device that sends some thousand reports a second. The reports of the quiet devices must
// all be answered, none with busy_server.
func TestNoisyDeviceHarmsNobody(t *testing.T) {
	t.Parallel()
	for _, c := range []noisyCase{
		{"mosquitto", "1", 1, 20 * time.Millisecond},
		{"embedded", "1", 1, 20 * time.Millisecond},
		{"mosquitto", "http", 1, 20 * time.Millisecond},
	} {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			c.check(t)
		})
	}
}

// TestDevicesWithoutPauseHarmNobody checks a site with devices that report as fast as they can. The reports of the quiet devices must all
// be answered, none with busy_server. The test needs the whole machine.
func TestDevicesWithoutPauseHarmNobody(t *testing.T) { //nolint:paralleltest // it floods the machine
	if testing.Short() {
		t.Skip("floods the machine")
	}
	for _, c := range []noisyCase{
		{"mosquitto", "1", 1, 0},
		{"mosquitto", "1", 20, 0},
		{"mosquitto", "0", 1, 0},
		{"mosquitto", "0", 20, 0},
		{"mosquitto", "http", 1, 0},
		{"mosquitto", "http", 20, 0},
		{"embedded", "1", 1, 0},
		{"embedded", "0", 1, 0},
		{"embedded", "1", 20, 0},
		{"embedded", "0", 20, 0},
		{"embedded", "http", 20, 0},
	} {
		t.Run(c.String(), func(t *testing.T) { c.check(t) })
	}
}

// TestNoisyDeviceIsSuspendedAtTheBroker checks a broker whose accounts the dispatcher manages: the account of a noisy device is disabled for a
// while, and then enabled again. The reports of the device over HTTP are answered in the meantime.
func TestNoisyDeviceIsSuspendedAtTheBroker(t *testing.T) {
	t.Parallel()
	p := startProvisioned(t, "DISPATCHER_MQTT_SUSPEND=8s", "DISPATCHER_REPORT_RATE=20")
	token := p.createDevice(t, "noisy-0")
	s := &noisySite{instance: p.instance, mqttURL: "mqtt://" + p.broker.Addr, tokens: map[string]string{"noisy-0": token}}
	conn := s.openRawSession(t, "noisy-0")
	defer conn.Close()
	reports := rawReports("noisy-0", 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, conn)
	}()
	for isOpen := true; isOpen; {
		_, _ = conn.Write(reports)
		select {
		case <-ended:
			isOpen = false
		case <-time.After(50 * time.Millisecond):
		}
	}
	if status, body := p.call(t, http.MethodPost, "/v1/devices/noisy-0/report", token, `{}`); status != http.StatusOK {
		t.Errorf("over HTTP: %d %s", status, body)
	}
	p.waitUntilRefused(t, "noisy-0", token)
	await.True(t, "the account is enabled again", func() bool { return connectDevice(t, p.broker.Addr, "noisy-0", token).err == nil })
	if events := p.callOperator(t, http.MethodGet, "/v1/events?kind=device.noisy", ""); !bytes.Contains(events, []byte(`via=mqtt`)) {
		t.Errorf("events %s", events)
	}
}
