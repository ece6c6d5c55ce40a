package servers

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// The account of the dispatchers at the deployed brokers.
const (
	DispatcherUser     = "_dispatcher"
	DispatcherPassword = "password-of-the-dispatchers"
)

// DeployedMosquitto is a broker that runs with the files of deploy/mosquitto. Only its ports, its folders and, as
// root, its user are changed for the test.
type DeployedMosquitto struct {
	*Process

	Addr          string // host:port for devices
	DispatcherURL string // mqtt://host:port for dispatchers

	folder string
}

// StartMosquittoDynsec starts a broker with the plugin dynamic security and the account of the dispatchers. It
// keeps its addresses and accounts over Kill and Start.
func StartMosquittoDynsec(tb testing.TB) *DeployedMosquitto {
	tb.Helper()
	RequireProgram(tb, "mosquitto_ctrl")
	m := copyDeployment(tb, "dynsec")
	script := filepath.Join(repositoryPath(tb), "deploy", "mosquitto", "dynsec", "start.sh")
	m.start(tb, func() *exec.Cmd {
		cmd := exec.Command(script, "mosquitto.conf")
		cmd.Env = append(os.Environ(), "MOSQUITTO_DATA="+m.folder, "PATH="+os.Getenv("PATH")+":/usr/sbin",
			"DISPATCHER_MQTT_USER="+DispatcherUser, "DISPATCHER_MQTT_PASSWORD="+DispatcherPassword)
		return cmd
	})
	return m
}

// StartMosquittoPasswords starts a broker with a password file. The file contains these devices and the
// dispatchers.
func StartMosquittoPasswords(tb testing.TB, devices map[string]string) *DeployedMosquitto {
	tb.Helper()
	program := RequireProgram(tb, "mosquitto")
	m := copyDeployment(tb, "passwords")
	acl, err := os.ReadFile(filepath.Join(repositoryPath(tb), "deploy", "mosquitto", "passwords", "acl"))
	must.Succeed(tb, err)
	writeFile(tb, filepath.Join(m.folder, "acl"), string(acl))
	m.runPasswd(tb, "-c", "-b", "passwords", DispatcherUser, DispatcherPassword)
	for device, password := range devices {
		m.runPasswd(tb, "-b", "passwords", device, password)
	}
	m.start(tb, func() *exec.Cmd { return exec.Command(program, "-c", "mosquitto.conf") })
	return m
}

// RemovePassword removes a device from the password file in the way that the documentation describes.
func (m *DeployedMosquitto) RemovePassword(tb testing.TB, device string) {
	tb.Helper()
	m.runPasswd(tb, "-D", "passwords", device)
	m.Signal(syscall.SIGHUP)
}

func (m *DeployedMosquitto) runPasswd(tb testing.TB, args ...string) {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), RequireProgram(tb, "mosquitto_passwd"), args...)
	cmd.Dir = m.folder
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("mosquitto_passwd: %v\n%s", err, out)
	}
}

// copyDeployment copies the files of the deployment into a folder of the test, and puts free ports into them.
func copyDeployment(tb testing.TB, variant string) *DeployedMosquitto {
	tb.Helper()
	RequireProgram(tb, "mosquitto")
	config, err := os.ReadFile(filepath.Join(repositoryPath(tb), "deploy", "mosquitto", variant, "mosquitto.conf"))
	must.Succeed(tb, err)
	m := &DeployedMosquitto{Addr: FreeAddr(tb), folder: tb.TempDir()}
	inside := FreeAddr(tb)
	m.DispatcherURL = "mqtt://" + inside
	text := string(config)
	for line, addr := range map[string]string{"\nlistener 1883\n": m.Addr, "\nlistener 1884 127.0.0.1\n": inside} {
		host, port, _ := net.SplitHostPort(addr)
		replaced := strings.Replace(text, line, "\nlistener "+port+" "+host+"\n", 1)
		if replaced == text {
			tb.Fatalf("the configuration of %s has no line %q", variant, strings.TrimSpace(line))
		}
		text = replaced
	}
	if os.Getuid() == 0 {
		text += "user root\n" // as root, mosquitto would switch to a user that cannot read the folder
	}
	writeFile(tb, filepath.Join(m.folder, "mosquitto.conf"), text)
	return m
}

func (m *DeployedMosquitto) start(tb testing.TB, command func() *exec.Cmd) {
	tb.Helper()
	m.Process = StartProcess(tb, func() *exec.Cmd {
		cmd := command()
		cmd.Dir = m.folder
		return cmd
	}, func() error { return mqttReady(m.Addr) })
}

// Accounts returns the names of the accounts in the file of the plugin, including the account of the dispatchers.
// While the broker writes the file, it returns nil, because mosquitto 2.0.11 overwrites the file in place.
func (m *DeployedMosquitto) Accounts(tb testing.TB) (names []string) {
	tb.Helper()
	content, err := os.ReadFile(filepath.Join(m.folder, "dynamic-security.json"))
	must.Succeed(tb, err)
	var list struct{ Clients []struct{ Username string } }
	if json.Unmarshal(content, &list) != nil {
		return nil
	}
	for _, c := range list.Clients {
		names = append(names, c.Username)
	}
	return names
}

// repositoryPath returns the path of the repository: the folder that contains deploy/.
func repositoryPath(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	must.Succeed(tb, err)
	for {
		if _, err := os.Stat(filepath.Join(dir, "deploy")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			tb.Fatal("no deploy/ above the test")
		}
		dir = parent
	}
}

// WhilePaused pauses the broker (SIGSTOP), calls during, and then continues the broker.
func (m *DeployedMosquitto) WhilePaused(during func()) {
	m.Signal(syscall.SIGSTOP)
	defer m.Signal(syscall.SIGCONT)
	during()
}

// CheckHealth runs the health check of the deployment with this password.
func (m *DeployedMosquitto) CheckHealth(tb testing.TB, password string) error {
	tb.Helper()
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(m.DispatcherURL, "mqtt://"))
	cmd := exec.CommandContext(tb.Context(), filepath.Join(repositoryPath(tb), "deploy", "mosquitto", "healthcheck.sh"))
	cmd.Env = append(os.Environ(), "MOSQUITTO_PORT="+port, "DISPATCHER_MQTT_USER="+DispatcherUser, "DISPATCHER_MQTT_PASSWORD="+password)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
