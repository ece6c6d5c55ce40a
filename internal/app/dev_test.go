package app

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

func devOptions(data string) DevOptions {
	return DevOptions{
		Listen: "127.0.0.1:0", MQTT: "127.0.0.1:0", Data: data,
		ReportPeriod: time.Second, Version: "test", Logger: discardLogger(),
	}
}

// startDev runs the program in the embedded mode (dev). Its ledger is in the folder data.
func startDev(t *testing.T, data string) (*instance, *DevServer) {
	t.Helper()
	d, err := NewDev(t.Context(), devOptions(data))
	must.Succeed(t, err)
	return startInstance(t, instance{url: d.URL, admin: d.AdminToken, fleet: d.FleetToken}, d.Run), d
}

func occupiedAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// TestDevRefusesAFolderOfOthers starts dev with a data folder in which other users may create files: dev must refuse the folder. Dev must
// also refuse a folder in which one of its files is a link, and must create nothing behind the link.
func TestDevRefusesAFolderOfOthers(t *testing.T) {
	t.Parallel()
	start := func(data string) error {
		d, err := NewDev(t.Context(), devOptions(data))
		if err == nil {
			err = d.app.cleanup.closeAll(context.WithoutCancel(t.Context()))
		}
		return err
	}
	open := t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil { //nolint:gosec // the test is about this mode
		t.Fatal(err)
	}
	if err := start(open); err == nil || !strings.Contains(err.Error(), "mode 777") {
		t.Errorf("a folder of mode 777: %v", err)
	}
	for _, name := range []string{"lock", "admin-token", "fleet-token", "ledger.db", "ledger.db-wal"} {
		data, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "target")
		must.Succeed(t, os.Symlink(elsewhere, filepath.Join(data, name)))
		if err := start(data); err == nil || !strings.Contains(err.Error(), name+" is a link") {
			t.Errorf("%s is a link: %v", name, err)
		}
		if _, err := os.Lstat(elsewhere); !os.IsNotExist(err) {
			t.Errorf("%s: a file was created behind the link", name)
		}
	}
}

// TestDevWarnsOfTheNetwork starts dev with several addresses: dev must warn of each address that other machines can reach.
func TestDevWarnsOfTheNetwork(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		http, mqtt string
		want       []string
	}{{"127.0.0.1:0", "[::1]:0", nil}, {"0.0.0.0:0", "127.0.0.1:0", []string{"flag=--listen "}}, {":0", "0.0.0.0:0", []string{"flag=--listen ", "flag=--mqtt-listen "}}} {
		o, log := devOptions(t.TempDir()), &await.Output{}
		o.Listen, o.MQTT, o.Logger = test.http, test.mqtt, slog.New(slog.NewTextHandler(log, nil))
		d, err := NewDev(t.Context(), o)
		must.Succeed(t, err)
		if err := d.app.cleanup.closeAll(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if got := strings.Count(log.String(), "other machines can reach this address"); got != len(test.want) {
			t.Errorf("%s and %s: %d warnings, want %d: %s", test.http, test.mqtt, got, len(test.want), log.String())
		}
		for _, flag := range test.want {
			if lacksLine(log, flag, "level=WARN") {
				t.Errorf("%s and %s: no warning with %s", test.http, test.mqtt, flag)
			}
		}
	}
}

func TestDevMovesOnlyDefaultPorts(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(o *DevOptions, address string, moves bool){
		"--listen":      func(o *DevOptions, address string, moves bool) { o.Listen, o.ListenMayMove = address, moves },
		"--mqtt-listen": func(o *DevOptions, address string, moves bool) { o.MQTT, o.MQTTMayMove = address, moves },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, o := occupiedAddr(t), devOptions(t.TempDir())
			set(&o, address, false)
			_, err := NewDev(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), address) {
				t.Errorf("explicit address in use: %v; want an error that names %s and %s", err, name, address)
			}
			set(&o, address, true)
			d, err := NewDev(t.Context(), o) // the same folder: the failed start has released its lock
			must.Succeed(t, err)
			if strings.HasSuffix(d.URL, address) || strings.HasSuffix(d.MQTTURL, address) {
				t.Errorf("%s, %s: one is in use by another", d.URL, d.MQTTURL)
			}
			i := startInstance(t, instance{url: d.URL}, d.Run)
			if status, body := i.call(t, http.MethodGet, "/readyz", "", ""); status != http.StatusOK {
				t.Errorf("ready: %d %s", status, body)
			}
		})
	}
}

func TestListenMovesOnlyPastTakenPorts(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1:http-no-such", "300.0.0.1:0", "no port"} {
		if l, err := listenOn(t.Context(), address, true); err == nil {
			l.Close()
			t.Errorf("%s: bound %s", address, l.Addr())
		}
	}
}

func TestDevFolderOfAnotherProcess(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	i, _ := startDev(t, data)
	_, err := NewDev(t.Context(), devOptions(data))
	if err == nil || !strings.Contains(err.Error(), "another dispatcher") || !strings.Contains(err.Error(), data) {
		t.Errorf("folder in use: %v; want an error that names it", err)
	}
	must.Succeed(t, i.stop())
	startDev(t, data)
}

func TestDevKeepsItsTokensToItself(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "made", "here")
	i, first := startDev(t, data)
	for name, want := range map[string]fs.FileMode{"": 0o700, "admin-token": 0o600, "fleet-token": 0o600} {
		info, err := os.Stat(filepath.Join(data, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, %v; want %v", name, info.Mode().Perm(), err, want)
		}
	}
	if status, _ := i.call(t, http.MethodGet, "/v1/pools/x", "wrong", ""); status != http.StatusUnauthorized {
		t.Errorf("a wrong token: %d", status)
	}
	must.Succeed(t, i.stop())
	_, second := startDev(t, data)
	if first.AdminToken != second.AdminToken || first.FleetToken != second.FleetToken || first.AdminToken == first.FleetToken {
		t.Error("the tokens are not those of before, or are the same")
	}
}

func TestDevGoesOnWithItsData(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	i, _ := startDev(t, data)
	i.callOperator(t, http.MethodPut, "/v1/pools/p", `{"capacity":1}`)
	i.callOperator(t, http.MethodPost, "/v1/batches", `{"pool":"p","kind":"k","devices":["a","b"]}`)
	grant := i.sendReport(t, "a", `{"id":"1"}`).Task
	if grant == nil {
		t.Fatal("a was not granted")
	}
	must.Succeed(t, i.stop())

	i, _ = startDev(t, data)
	if got := i.sendReport(t, "b", `{"id":"1"}`).Reason; got != devices.ReasonFull {
		t.Errorf("b is told %q; want full: the slot of a is held over the restart", got)
	}
	if slots := i.callOperator(t, http.MethodGet, "/v1/pools/p/slots", ""); !bytes.Contains(slots, []byte(`"device":"a"`)) {
		t.Errorf("slots after the restart: %s", slots)
	}
	result := fmt.Sprintf(`{"id":"2","accept":false,"results":[{"task":%d,"token":%d,"status":"succeeded","output":{"n":1}}]}`, grant.ID, grant.Token)
	reply := i.sendReport(t, "a", result)
	if len(reply.Acks) != 1 || reply.Acks[0].Outcome != devices.OutcomeRecorded {
		t.Errorf("result of a: %+v, want recorded", reply.Acks)
	}
	if reply := i.sendReport(t, "b", `{"id":"2"}`); reply.Reason != devices.ReasonGranted {
		t.Errorf("b is told %q; want its task, queued before the restart", reply.Reason)
	}
}

// mqttDevice is a device that is connected to the broker by MQTT.
type mqttDevice struct {
	paho.Client
	id      devices.ID
	replies chan []byte
}

func newMQTTDevice(t *testing.T, d *DevServer, id devices.ID) *mqttDevice {
	t.Helper()
	m := &mqttDevice{id: id, replies: make(chan []byte, 10)}
	m.Client = paho.NewClient(paho.NewClientOptions().
		AddBroker(d.MQTTURL).SetClientID(string(id)).SetUsername(string(id)).SetPassword(d.FleetToken).
		SetAutoReconnect(false))
	wait := func(what string, token paho.Token) {
		t.Helper()
		if !token.WaitTimeout(patience) || token.Error() != nil {
			t.Fatalf("%s: %v", what, token.Error())
		}
	}
	wait("connect", m.Connect())
	t.Cleanup(func() { m.Disconnect(0) })
	wait("subscribe", m.Subscribe(devices.ReplyTopic(id), 1, func(_ paho.Client, message paho.Message) { m.replies <- message.Payload() }))
	return m
}

func (m *mqttDevice) sendReport(t *testing.T, body string) devices.Reply {
	t.Helper()
	m.Publish(devices.ReportTopic(m.id), 1, false, body)
	return m.nextReply(t)
}

// nextReply returns the next reply to the device. It skips messages that only wake the device.
func (m *mqttDevice) nextReply(t *testing.T) devices.Reply {
	t.Helper()
	reply, arrived := m.replyWithin(t, patience)
	if !arrived {
		t.Fatal("no reply")
	}
	return reply
}

// replyWithin returns the next reply to a report, if it arrives within limit.
func (m *mqttDevice) replyWithin(t *testing.T, limit time.Duration) (reply devices.Reply, arrived bool) {
	t.Helper()
	late := time.After(limit)
	for {
		select {
		case content := <-m.replies:
			if reply := decodeReply(t, content); reply.Reason != devices.ReasonWake {
				return reply, true
			}
		case <-late:
			return devices.Reply{}, false
		}
	}
}

func TestDevServesHTTPAndMQTT(t *testing.T) {
	t.Parallel()
	i, d := startDev(t, t.TempDir())
	waitForBroker(t, i)
	m := newMQTTDevice(t, d, "meter")
	for name, report := range map[string]func(string) devices.Reply{
		"box":   func(body string) devices.Reply { return i.sendReport(t, "box", body) },
		"meter": func(body string) devices.Reply { return m.sendReport(t, body) },
	} {
		i.callOperator(t, http.MethodPut, "/v1/pools/"+name, `{"capacity":1}`)
		i.callOperator(t, http.MethodPost, "/v1/batches", fmt.Sprintf(`{"pool":%q,"kind":"k","devices":[%q]}`, name, name))
		reply := report(`{"id":"1"}`)
		if reply.Task == nil || reply.Re != "1" {
			t.Errorf("%s: %+v, want a grant", name, reply)
			continue
		}
		reply = report(fmt.Sprintf(`{"id":"2","results":[{"task":%d,"token":%d,"status":"succeeded"}]}`, reply.Task.ID, reply.Task.Token))
		if len(reply.Acks) != 1 || reply.Acks[0].Outcome != devices.OutcomeRecorded || reply.Reason != devices.ReasonNone {
			t.Errorf("%s: %+v, want the result recorded", name, reply)
		}
	}
	metrics := string(i.callOperator(t, http.MethodGet, "/metrics", ""))
	for _, want := range []string{
		`dispatcher_reports_total{reason="granted",transport="http"} 1`, `dispatcher_reports_total{reason="granted",transport="mqtt"} 1`,
		`dispatcher_slots_capacity{pool="box"} 1`, `dispatcher_slots_held{pool="box"} 0`, `dispatcher_slots_waiting{pool="meter"} 0`,
		`dispatcher_tasks{pool="box",state="succeeded"} 1`, `dispatcher_build_info{version="test"} 1`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
	if status, body := i.call(t, http.MethodPost, "/v1/devices/other/report", "wrong", "{}"); status != http.StatusUnauthorized {
		t.Errorf("a wrong token: %d %s", status, body)
	}
	if reply := m.sendReport(t, "{"); reply.Reason != devices.ReasonInvalid {
		t.Errorf("a broken report: %+v", reply)
	}
}

// TestDevBannerLinesWork runs the command lines of the banner that dev prints, exactly as they are printed.
//
//nolint:tparallel // the second subtest needs the batch of the first
func TestDevBannerLinesWork(t *testing.T) {
	t.Parallel()
	i, d := startDev(t, t.TempDir())
	var banner bytes.Buffer
	d.WriteBanner(&banner)
	lines := make(map[string]string)
	for line := range strings.Lines(banner.String()) {
		line = strings.TrimSpace(line)
		for key, mark := range map[string]string{
			"device": "/report -H", "sub": "mosquitto_sub", "pub": "mosquitto_pub",
			"pool": "-X PUT", "batch": "/v1/batches", "slots": "/slots",
		} {
			if strings.Contains(line, mark) {
				lines[key] = line
			}
		}
	}
	if len(lines) != 6 {
		t.Fatalf("lines to paste: %v in %s", lines, &banner)
	}
	waitForBroker(t, i)
	t.Run("curl", func(t *testing.T) {
		servers.RequireProgram(t, "curl")
		for _, step := range []struct{ line, want string }{
			{"device", `"reason":"none"`},
			{"pool", `"capacity":60`},
			{"batch", `"tasks":2`},
			{"device", `"reason":"granted"`},
			{"slots", `"device":"my-device"`},
		} {
			if got := runShell(t, lines[step.line]); !strings.Contains(got, step.want) {
				t.Errorf("%s:\n%s\nwant %s", lines[step.line], got, step.want)
			}
		}
	})
	t.Run("mosquitto", func(t *testing.T) {
		servers.RequireProgram(t, "mosquitto_pub")
		if got := runShell(t, lines["sub"]+"\n"+lines["pub"]+"\nwait"); !strings.Contains(got, `"re":"r1"`) || !strings.Contains(got, `"granted"`) {
			t.Errorf("%s\n%s:\n%s\nwant a grant", lines["sub"], lines["pub"], got)
		}
	})
}

// TestDevBannerSignsIn checks the link in the banner of dev: it signs the browser in. The address without the
// secret does not, because other users of the machine know the address.
func TestDevBannerSignsIn(t *testing.T) {
	t.Parallel()
	_, d := startDev(t, t.TempDir())
	var banner bytes.Buffer
	d.WriteBanner(&banner)
	if !strings.Contains(banner.String(), d.SignInURL+"\n") {
		t.Fatalf("no link in %s", &banner)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	follow := func(url string) string {
		response, err := client.Get(url)
		must.Succeed(t, err)
		response.Body.Close()
		return fmt.Sprint(response.StatusCode, " ", response.Header.Get("Location"), " ", len(response.Cookies()))
	}
	for _, step := range []struct{ url, want string }{
		{d.URL + "/", "303 /sign-in?next=%2F 0"}, {d.SignInURL, "303 / 1"}, {d.SignInURL, "401  0"},
	} {
		if got := follow(step.url); got != step.want {
			t.Errorf("%s: %s, want %s", step.url, got, step.want)
		}
	}
}

func runShell(t *testing.T, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "bash", "-c", script).CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

func TestDevEndsCleanly(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	i, d := startDev(t, data)
	newMQTTDevice(t, d, "connected-meter")
	i.sendReport(t, "box", `{"id":"1"}`)
	if err := i.stop(); err != nil {
		t.Errorf("end: %v", err)
	}
	o := devOptions(data)
	o.Listen, o.MQTT = strings.TrimPrefix(d.URL, "http://"), strings.TrimPrefix(d.MQTTURL, "mqtt://")
	for _, address := range []string{o.Listen, o.MQTT} {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			t.Errorf("%s still accepts", address)
		}
	}
}

func TestDevRefusesABrokenToken(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	must.Succeed(t, os.WriteFile(filepath.Join(data, "fleet-token"), []byte("short"), 0o600))
	if d, err := NewDev(t.Context(), devOptions(data)); err == nil || !strings.Contains(err.Error(), "fleet_token") {
		t.Errorf("%v, %v; want an error that names fleet_token", d, err)
	}
}
