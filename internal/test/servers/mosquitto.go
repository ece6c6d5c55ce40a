package servers

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// MosquittoServer is an MQTT broker that belongs to one test.
type MosquittoServer struct {
	*Process

	Addr string // host:port
	URL  string // mqtt://host:port
}

// StartMosquitto starts a broker that admits all clients. After Kill and Start, the broker has the same address and no
// data.
func StartMosquitto(tb testing.TB) *MosquittoServer {
	tb.Helper()
	return startBroker(tb, "allow_anonymous true")
}

// StartMosquittoWithLimits starts a broker that admits all clients. It has the limits of deploy/mosquitto for
// messages in flight and queued messages.
func StartMosquittoWithLimits(tb testing.TB) *MosquittoServer {
	tb.Helper()
	return startBroker(tb, "allow_anonymous true", "max_inflight_messages 100", "max_queued_messages 10000")
}

// StartMosquittoWithUsers starts a broker that admits only these users with their passwords. The access list gives
// them their rights.
func StartMosquittoWithUsers(tb testing.TB, passwords map[string]string, accessList ...string) *MosquittoServer {
	tb.Helper()
	dir := tb.TempDir()
	passwordFile, aclFile := filepath.Join(dir, "passwords"), filepath.Join(dir, "acl")
	var lines strings.Builder
	for user, password := range passwords {
		fmt.Fprintf(&lines, "%s:%s\n", user, password)
	}
	writeFile(tb, passwordFile, lines.String())
	if out, err := exec.CommandContext(tb.Context(), RequireProgram(tb, "mosquitto_passwd"), "-U", passwordFile).CombinedOutput(); err != nil {
		tb.Fatalf("mosquitto_passwd: %v\n%s", err, out)
	}
	writeFile(tb, aclFile, strings.Join(accessList, "\n")+"\n")
	return startBroker(tb, "allow_anonymous false", "password_file "+passwordFile, "acl_file "+aclFile)
}

// StartMosquittoTLS starts a broker with a second listener, which uses TLS with this certificate and admits only
// clients with a certificate of authority. tlsURL is the URL of the second listener, mqtts://host:port.
func StartMosquittoTLS(tb testing.TB, certificate, key, authority string) (s *MosquittoServer, tlsURL string) {
	tb.Helper()
	addr := FreeAddr(tb)
	host, port, _ := net.SplitHostPort(addr)
	s = startBroker(tb, "allow_anonymous true", "listener "+port+" "+host, "certfile "+certificate, "keyfile "+key, "cafile "+authority, "require_certificate true")
	return s, "mqtts://" + addr
}

func startBroker(tb testing.TB, config ...string) *MosquittoServer {
	tb.Helper()
	program, addr := RequireProgram(tb, "mosquitto"), FreeAddr(tb)
	host, port, _ := net.SplitHostPort(addr)
	config = append(config, "listener "+port+" "+host, "persistence false", "max_packet_size 131072", "set_tcp_nodelay true")
	if os.Getuid() == 0 {
		config = append(config, "user root") // as root, mosquitto would switch to a user that cannot read the folder
	}
	file := filepath.Join(tb.TempDir(), "mosquitto.conf")
	writeFile(tb, file, strings.Join(config, "\n")+"\n")
	process := StartProcess(tb, func() *exec.Cmd { return exec.Command(program, "-c", file) }, func() error { return mqttReady(addr) })
	return &MosquittoServer{Process: process, Addr: addr, URL: "mqtt://" + addr}
}

// mqttReady reports whether the broker answers a CONNECT. An open port is not enough, because it could belong to another program.
func mqttReady(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	connect := "\x10\x11\x00\x04MQTT\x04\x02\x00\x3c\x00\x05ready"
	if _, err := conn.Write([]byte(connect)); err != nil {
		return err
	}
	var answer [4]byte
	if _, err := conn.Read(answer[:]); err != nil {
		return err
	}
	if answer[0] != 0x20 {
		return fmt.Errorf("not a CONNACK: %x", answer)
	}
	return nil
}

func writeFile(tb testing.TB, path, text string) {
	tb.Helper()
	must.Succeed(tb, os.WriteFile(path, []byte(text), 0o600))
}
