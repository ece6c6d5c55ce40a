package check_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices/check"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

const kit = "../../examples/devices"

// program is a device program in a process of its own.
type program struct {
	name    string
	command []string // without the options of the kit
	scheme  string   // http or mqtt

	dir     string
	server  string
	process *exec.Cmd
}

func (p *program) start() error {
	args := append(p.command[1:len(p.command):len(p.command)], "--server", p.scheme+"://"+p.server, "--device", "dev-1",
		"--token-file", p.dir+"/token", "--journal", p.dir+"/journal", "--period", "2")
	p.process = exec.Command(p.command[0], args...)
	p.process.Dir = p.dir
	p.process.Env = append(os.Environ(), "CLOCK="+p.dir+"/clock")
	p.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a shell and its background processes end together
	log, err := os.OpenFile(p.dir+"/log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p.process.Stdout, p.process.Stderr = log, log
	return p.process.Start()
}

// kill ends the process at once, as a power failure would. Unlike after a power failure, files that were not synced survive.
func (p *program) kill() {
	_ = syscall.Kill(-p.process.Process.Pid, syscall.SIGKILL)
	_ = p.process.Wait()
}

// check runs the check against the program, in those scenarios whose names contain the text of the parameter only.
func (p *program) check(t *testing.T, only string) map[string]check.Finding {
	t.Helper()
	p.dir = t.TempDir()
	for name, content := range map[string]string{"token": "secret\n", "clock": "0", "earlier": "-3600"} {
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(content), 0o600); err != nil {
			t.Error(err)
		}
	}
	options := check.Options{
		Only: only, Token: "secret", FirstToken: 1000, JoinWait: time.Minute, System: listen(t), OnScenario: func(string, time.Duration) {},
		Reboot:     func() error { p.kill(); return p.start() },
		ShiftClock: func() error { return os.Rename(p.dir+"/earlier", p.dir+"/clock") }, // at once: the program reads it all the time
	}
	listener := listen(t)
	p.server = listener.Addr().String()
	if options.HTTP = listener; p.scheme == "mqtt" {
		options.HTTP, options.MQTT, options.MQTTScheme = nil, listener, "tcp"
	}
	if err := p.start(); err != nil {
		t.Error(err)
		return nil
	}
	defer func() { p.kill() }()
	findings, err := check.Run(t.Context(), options)
	found := map[string]check.Finding{}
	for _, f := range findings {
		found[f.Rule] = f
	}
	log, _ := os.ReadFile(p.dir + "/log")
	t.Logf("%s: %v %s", p.name, err, log)
	return found
}

// listen returns a listener on a free port of the loopback address.
func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	return listener
}

// checkPasses checks all programs concurrently, because a check mostly waits. It fails the test for each rule that a program broke.
func checkPasses(t *testing.T, only string, programs ...*program) {
	t.Helper()
	var all sync.WaitGroup
	for _, p := range programs {
		all.Go(func() {
			passed := 0
			for _, f := range p.check(t, only) {
				switch f.State {
				case check.Passed:
					passed++
				case check.Failed:
					t.Errorf("%s: %s in %q: %s\n%s", p.name, f.Rule, f.Scenario, f.Found, f.Sent)
				}
			}
			if least := map[bool]int{true: 30, false: 7}[only == ""]; passed < least {
				t.Errorf("%s: %d rules passed, at least %d must", p.name, passed, least)
			}
		})
	}
	all.Wait()
}

// kitPath returns the absolute path of a file of the kit.
func kitPath(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(kit + "/" + name)
	must.Succeed(t, err)
	return path
}

// pythonHTTP returns the device program in Python over HTTP.
func pythonHTTP(t *testing.T) *program {
	t.Helper()
	return &program{name: "python-http", command: []string{"python3", kitPath(t, "python-http/device.py")}, scheme: "http"}
}

// pythonMQTT returns the device program in Python over MQTT. Only the Python of the system has paho.
func pythonMQTT(t *testing.T) *program {
	t.Helper()
	return &program{name: "python-mqtt", command: []string{"/usr/bin/python3", kitPath(t, "python-mqtt/device.py")}, scheme: "mqtt"}
}

// edited returns a copy of the device program in Python. oldnew has pairs of texts: each first text is replaced by the second one.
func edited(t *testing.T, name string, oldnew ...string) *program {
	t.Helper()
	p := pythonHTTP(t)
	text, err := os.ReadFile(p.command[1])
	must.Succeed(t, err)
	source := string(text)
	for i := 0; i < len(oldnew); i += 2 {
		if strings.Count(source, oldnew[i]) != 1 {
			t.Fatalf("%s: the program has %q %d times", name, oldnew[i], strings.Count(source, oldnew[i]))
		}
		source = strings.Replace(source, oldnew[i], oldnew[i+1], 1)
	}
	p.name, p.command[1] = name, filepath.Join(t.TempDir(), "device.py")
	must.Succeed(t, os.WriteFile(p.command[1], []byte(source), 0o600))
	return p
}

// TestProgramsOfTheKitMeetLostReplies checks the programs of the kit only in the scenario of lost replies, which is short enough to run
// with each change.
func TestProgramsOfTheKitMeetLostReplies(t *testing.T) {
	t.Parallel()
	checkPasses(t, "lost replies", pythonHTTP(t), pythonMQTT(t))
}

// TestTheKitPasses checks that each program of the kit passes the whole check, and that two correct variants of a program pass too.
func TestTheKitPasses(t *testing.T) {
	if testing.Short() {
		t.Skip("takes three minutes")
	}
	t.Parallel()
	built := t.TempDir()
	for _, build := range [][]string{
		{"go", "build", "-trimpath", "-o", built + "/go-http", "../../examples/devices/go-http"},
		{"cp", "-r", kit + "/c", built + "/c"},
		{"make", "-C", built + "/c"},
	} {
		if out, err := exec.CommandContext(t.Context(), build[0], build[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", build, err, out)
		}
	}
	checkPasses(t, "",
		pythonHTTP(t), pythonMQTT(t),
		&program{name: "shell-http", command: []string{"sh", kitPath(t, "shell-http/device.sh")}, scheme: "http"},
		&program{name: "go-http", command: []string{built + "/go-http"}, scheme: "http"},
		&program{name: "c-http", command: []string{built + "/c/device-http"}, scheme: "http"},
		&program{name: "c-mqtt", command: []string{built + "/c/device-mqtt"}, scheme: "mqtt"},
		edited(t, "other order of fields", `json.dumps(body)`, `json.dumps(body, sort_keys=True)`),
		edited(t, "no optional fields", `json.dumps(body)`, `json.dumps({k: v for k, v in body.items() if v not in ([], True)})`),
	)
}

// TestMistakesInAProgramOfTheKitAreFound checks that the check finds each mistake that is made in a copy of the device program in Python.
func TestMistakesInAProgramOfTheKitAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("TestEachMistakeIsFound makes the same mistakes in a fake device")
	}
	t.Parallel()
	var all sync.WaitGroup
	for _, m := range []struct{ name, rule, scenario, old, new string }{
		{"reported before it is in the journal", "reboot-journal", "before the outcome", "        self.started = None\n        self.save()", "        self.started = None"},
		{"forgotten after 503", "refused-keeps", "busy", "elif status in (401, 403, 429):", "elif status == 503:\n            self.journal.results.clear()\n        elif status in (401, 403, 429):"},
		{"same token twice", "started-once", "repeated", "key[1] > self.journal.top", "key[1] >= self.journal.top"},
		{"older token", "old-token", "old token", "key[1] > self.journal.top", "key[1] != self.journal.top"},
		{"lease from the reply", "lease-start", "slow", `self.sent.get(reply.get("re"))`, `self.sent.get(reply.get("re")) and now()`},
		{"wall clock", "clock", "clock", "time.clock_gettime(time.CLOCK_BOOTTIME)", `time.time() + float(open(os.environ["CLOCK"]).read())`},
		{"held_ms left out", "held", "parked", `reply.get("held_ms", 0) / 1000`, "0"},
		{"work after a cancel", "cancel", "cancel", `self.work.cancel(entry.get("why") or "cancelled")`, "pass"},
		{"413 for ever", "too-large", "too large", "self.on_refusal(results)", "pass"},
		{"Retry-After ignored", "refused-waits", "busy", `1000 * int(headers.get("Retry-After", -1))`, "-1000"},
		{"unknown field", "unknown-ignored", "unknown", `if reply.get("credential"):`, `if reply.get("weather"):` + "\n            os._exit(1)\n        " + `if reply.get("credential"):`},
		{"no pacing", "paced", "repeated", "again, self.told = key != self.told, key", "again = True"},
	} {
		p := edited(t, m.name, m.old, m.new)
		all.Go(func() {
			f := p.check(t, m.scenario)[m.rule]
			if f.State != check.Failed {
				t.Errorf("%s: %s: %s", m.name, m.rule, f.State)
			}
			t.Logf("%s -> %s: %s", m.name, m.rule, f.Found)
		})
	}
	all.Wait()
}
