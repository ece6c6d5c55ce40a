package topology

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/lib/pq"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// localDeployment is the deployment of docker-compose.yml on this machine, with programs instead of images,
// loopback addresses instead of names, and one folder for all files.
type localDeployment struct {
	t            *testing.T
	compose      composition
	dir          string // the folder for all files that are written
	binary       string // path of the dispatcher
	postgresUser *syscall.Credential

	addresses map[string]string // for example redis:6379 -> 127.0.0.1:12345
	processes map[string]*servers.Process
}

func newLocalDeployment(t *testing.T, compose composition, binary string) *localDeployment {
	t.Helper()
	for _, program := range []string{"postgres", "redis-server", "redis-cli", "mosquitto", "mosquitto_ctrl", "mosquitto_sub", "pg_isready"} {
		servers.RequireProgram(t, program)
	}
	p := &localDeployment{
		t: t, compose: compose, binary: binary, dir: servers.ClusterDir(t), postgresUser: servers.ServerUser(t),
		addresses: map[string]string{}, processes: map[string]*servers.Process{},
	}
	t.Cleanup(func() { _ = os.RemoveAll(p.dir) })
	if err := os.Chmod(p.dir, 0o755); err != nil { //nolint:gosec // the servers run as other users
		t.Fatal(err)
	}
	for name, s := range compose.Services {
		for _, port := range p.servicePorts(name, s) {
			p.addresses[name+":"+port] = servers.FreeAddr(t)
		}
		p.copyMounts(name, s)
	}
	return p
}

// servicePorts returns the ports of a service: those that the variables of other services name, and those on which
// its own files say that it listens.
func (p *localDeployment) servicePorts(name string, s service) []string {
	found := map[string]bool{}
	for _, other := range p.compose.Services {
		for _, value := range other.Environment {
			for _, match := range regexp.MustCompile(`\b`+regexp.QuoteMeta(name)+`:(\d+)`).FindAllStringSubmatch(value, -1) {
				found[match[1]] = true
			}
		}
	}
	for _, file := range s.mounts() {
		for _, match := range listenPattern().FindAllStringSubmatch(string(readRepoFile(p.t, strings.TrimPrefix(file, root))), -1) {
			found[match[1]] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// listenPattern finds the ports in the servers' configuration files.
func listenPattern() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^(?:port|listener|port =) (\d+)(?: [\d.]+)?$`)
}

// copyMounts copies the files that the service mounts into a folder of the test. Only their ports, addresses and
// folders are changed; as root, also the user of mosquitto.
func (p *localDeployment) copyMounts(name string, s service) {
	p.t.Helper()
	for target, file := range s.mounts() {
		content := string(readRepoFile(p.t, strings.TrimPrefix(file, root)))
		content = listenPattern().ReplaceAllStringFunc(content, func(line string) string {
			port := listenPattern().FindStringSubmatch(line)[1]
			_, local, _ := net.SplitHostPort(p.addresses[name+":"+port])
			if strings.HasPrefix(line, "listener") {
				return "listener " + local + " 127.0.0.1"
			}
			return strings.TrimSuffix(line, port) + local
		})
		for from, to := range map[string]string{
			`(?m)^bind .*$`:               "bind 127.0.0.1",
			`(?m)^dir .*$`:                "dir " + p.dataDir(name),
			`(?m)^listen_addresses = .*$`: "listen_addresses = '127.0.0.1'\nunix_socket_directories = ''",
			// As root, mosquitto would switch to another user, which could not read the folder.
			`(?m)^per_listener_settings false$`: "per_listener_settings false" + map[bool]string{true: "\nuser root"}[os.Getuid() == 0],
		} {
			content = regexp.MustCompile(from).ReplaceAllString(content, to)
		}
		p.writeFile(p.mountPath(name, target), content)
	}
	p.must(os.MkdirAll(p.dataDir(name), 0o700))
}

func (p *localDeployment) dataDir(name string) string { return filepath.Join(p.dir, name, "data") }
func (p *localDeployment) mountPath(name, target string) string {
	return filepath.Join(p.dir, name, target)
}

func (p *localDeployment) writeFile(path, content string) {
	p.t.Helper()
	p.must(os.MkdirAll(filepath.Dir(path), 0o755))
	p.must(os.WriteFile(path, []byte(content), 0o644))
}

func (p *localDeployment) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// localText replaces the addresses and file names of a service in text with the local ones.
func (p *localDeployment) localText(name, text string) string {
	for target := range p.compose.Services[name].mounts() {
		text = strings.ReplaceAll(text, target, p.mountPath(name, target))
	}
	for address, local := range p.addresses {
		text = strings.ReplaceAll(text, address, local)
		if of, port, _ := net.SplitHostPort(address); of == name {
			_, localPort, _ := net.SplitHostPort(local)
			text = strings.ReplaceAll(text, "127.0.0.1:"+port, local)
			if text == port {
				text = localPort
			}
		}
	}
	return text
}

// serviceCommand returns a command with these words as the service would run it. It has only the environment of the
// service.
func (p *localDeployment) serviceCommand(ctx context.Context, name string, words ...string) *exec.Cmd {
	environ := []string{"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/usr/local/sbin", "HOME=" + p.dataDir(name)}
	for key, value := range p.compose.Services[name].Environment {
		environ = append(environ, key+"="+p.localText(name, value))
	}
	switch {
	case name == "mosquitto":
		environ = append(environ, "MOSQUITTO_DATA="+p.dataDir(name))
	case p.isDispatcher(name):
		environ = append(environ, "DISPATCHER_HTTP_LISTEN="+p.address(name))
	}
	for i, word := range words {
		words[i] = p.localText(name, word)
	}
	program := words[0]
	if program == "/dispatcher" {
		program = p.binary
	} else if filepath.Base(program) == program {
		program = servers.RequireProgram(p.t, program)
	}
	cmd := exec.CommandContext(ctx, program, words[1:]...)
	cmd.Env, cmd.Dir = environ, p.dataDir(name)
	return cmd
}

func (p *localDeployment) isDispatcher(name string) bool {
	return strings.HasPrefix(name, "dispatcher-")
}

// address returns the local address of the only port of a service.
func (p *localDeployment) address(name string) string {
	for address, local := range p.addresses {
		if strings.HasPrefix(address, name+":") {
			return local
		}
	}
	p.t.Fatalf("%s has no port", name)
	return ""
}

// startService starts a service after the services that it depends on, and waits until its health check succeeds.
func (p *localDeployment) startService(name string) {
	p.t.Helper()
	if p.processes[name] != nil {
		return
	}
	s := p.compose.Services[name]
	for _, other := range slices.Sorted(maps.Keys(s.DependsOn)) {
		p.startService(other)
	}
	words := slices.Concat(s.Entrypoint, s.Command)
	switch {
	case name == "postgres":
		p.initPostgres(s)
		words = append(words, "-D", p.dataDir(name))
	case p.isDispatcher(name):
		image := readDockerfile(p.t)
		words = slices.Concat(image.commandWords("ENTRYPOINT"), image.commandWords("CMD"))
	}
	p.processes[name] = servers.StartProcess(p.t, func() *exec.Cmd {
		return p.asUser(name, p.serviceCommand(context.Background(), name, slices.Clone(words)...))
	}, func() error { return p.checkHealth(name) })
	if name == "postgres" {
		p.createDatabase(s)
	}
	p.t.Logf("%s is healthy", name)
}

// checkHealth runs the health check of the service once.
func (p *localDeployment) checkHealth(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := p.serviceCommand(ctx, name, slices.Clone(p.compose.Services[name].Healthcheck.Test[1:])...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// asUser makes Postgres run as another user than root, because it refuses to run as root.
func (p *localDeployment) asUser(name string, cmd *exec.Cmd) *exec.Cmd {
	if name == "postgres" && p.postgresUser != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.postgresUser}
	}
	return cmd
}

// initPostgres prepares Postgres as the entrypoint of its image does, together with createDatabase.
func (p *localDeployment) initPostgres(s service) {
	p.t.Helper()
	password := filepath.Join(p.dir, "postgres", "password")
	p.writeFile(password, s.Environment["POSTGRES_PASSWORD"])
	if p.postgresUser != nil {
		p.must(os.Chown(p.dataDir("postgres"), int(p.postgresUser.Uid), int(p.postgresUser.Gid)))
	}
	words := append([]string{"initdb", "-D", p.dataDir("postgres"), "-U", s.Environment["POSTGRES_USER"], "--auth=scram-sha-256", "--pwfile=" + password},
		strings.Fields(s.Environment["POSTGRES_INITDB_ARGS"])...)
	if out, err := p.asUser("postgres", p.serviceCommand(p.t.Context(), "postgres", words...)).CombinedOutput(); err != nil {
		p.t.Fatalf("initdb: %v\n%s", err, out)
	}
}

func (p *localDeployment) createDatabase(s service) {
	p.t.Helper()
	dsn := url.URL{
		Scheme: "postgres", Host: p.address("postgres"), Path: "postgres", RawQuery: "sslmode=disable",
		User: url.UserPassword(s.Environment["POSTGRES_USER"], s.Environment["POSTGRES_PASSWORD"]),
	}
	db, err := sql.Open("postgres", dsn.String())
	p.must(err)
	defer db.Close()
	_, err = db.ExecContext(p.t.Context(), "CREATE DATABASE "+cmp.Or(s.Environment["POSTGRES_DB"], "none"))
	p.must(err)
}
