package compose

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// These flags are set by `make compose-test`.
var (
	composePath  = flag.String("compose", "", "the program of docker compose")                 //nolint:gochecknoglobals // a flag of the test
	packagesPath = flag.String("packages", "", "a tar file of Debian with standins/packages")  //nolint:gochecknoglobals // a flag of the test
	folder       = flag.String("folder", "", "the folder of the engine's data; it is removed") //nolint:gochecknoglobals // a flag of the test
)

// root is the path of the repository.
const root = "../../.."

// services are the services without a profile.
func services() []string {
	return []string{"postgres", "redis", "mosquitto", "dispatcher-1", "dispatcher-2"}
}

// TestCompose runs docker-compose.yml as it is in HEAD, with faults under the load of its fleet.
func TestCompose(t *testing.T) {
	t.Parallel()
	if *composePath == "" || *packagesPath == "" || *folder == "" {
		t.Skip("needs root and a Docker engine: make compose-test")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	defer cancel()
	d := &deployment{dir: *folder, project: filepath.Join(*folder, "dispatcher"), log: t.Logf}
	removeWork(t, d.dir)
	must.Succeed(t, os.MkdirAll(d.project, 0o755))
	stop, err := startEngine(ctx, d.dir)
	must.Succeed(t, err)
	defer removeWork(t, d.dir)
	defer stop()
	list, passed := runSteps(ctx, d.steps())
	t.Logf("docker-compose.yml with stand-ins of its images:\n%s", list)
	if !passed {
		t.Fail()
	}
}

func removeWork(t *testing.T, dir string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}

// steps returns the checks of docker-compose.yml in their order. Each step continues with the state that the previous steps left.
func (d *deployment) steps() []step {
	return []step{
		{"the files are those of HEAD", d.checkFiles},
		{"each image has a stand-in", d.buildStandins},
		{"build: docker compose build", d.checkBuild},
		{"up: docker compose up -d --build", d.checkUp},
		{"healthy: all services, and both replicas are ready", d.checkHealthy},
		{"inspect: users, read-only file systems, capabilities, limits and ports", d.checkInspect},
		{"from inside: users, read-only file systems, capabilities, limits and networks", d.checkInside},
		{"fleet: the fleet profile, never 61 devices inside", d.checkFleet},
		{"replica killed under load", d.checkReplicaKilled},
		{"Redis restarted under load", d.checkRedisRestart},
		{"mosquitto restarted under load, with its accounts", d.checkMosquittoRestart},
		{"rolling restart under load", d.checkRollingRestart},
		{"down and up: the data is kept", d.checkDownAndUp},
		{"monitoring: the monitoring profile", d.checkMonitoring},
		{"down --volumes: nothing is left", d.checkRemoved},
	}
}

// checkFiles exports HEAD and shows the hash of docker-compose.yml.
func (d *deployment) checkFiles(ctx context.Context) error {
	repository, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	if err := d.exportHEAD(ctx, repository); err != nil {
		return err
	}
	content, err := os.ReadFile(filepath.Join(d.project, "docker-compose.yml"))
	if err != nil {
		return err
	}
	commit, err := d.output(ctx, "git", "-C", repository, "rev-parse", "HEAD", "HEAD:docker-compose.yml")
	if err != nil {
		return err
	}
	object, err := d.output(ctx, "git", "hash-object", "docker-compose.yml")
	if err != nil {
		return err
	}
	head, inHEAD, _ := strings.Cut(commit, "\n")
	d.log("docker-compose.yml of commit %s: git object %s, sha256 %x", head, object, sha256.Sum256(content))
	if object != inHEAD {
		return fmt.Errorf("the file has the git object %s, that of HEAD is %s", object, inHEAD)
	}
	return nil
}

// checkBuild builds the image of the dispatcher.
func (d *deployment) checkBuild(ctx context.Context) error {
	if out, err := d.output(ctx, "make", "env"); err != nil || !strings.Contains(out, "Wrote .env.") {
		return fmt.Errorf("make env: %w: %s", err, out)
	}
	if _, err := d.compose(ctx, "build"); err != nil {
		return err
	}
	out, err := d.output(ctx, "docker", "image", "inspect", "--format", "{{.Config.User}} {{.Config.Entrypoint}} {{.Config.Cmd}}", "dispatcher:dev")
	if err == nil && out != "nonroot [/dispatcher] [serve]" {
		err = fmt.Errorf("the image has the user, the entry point and the command %q", out)
	}
	return err
}

// checkUp starts the services with the command of the README.
func (d *deployment) checkUp(ctx context.Context) error {
	_, err := d.compose(ctx, "up", "-d", "--build")
	return err
}

// checkHealthy waits for the health checks, and for the published ports of the replicas.
func (d *deployment) checkHealthy(ctx context.Context) error {
	containers, err := d.awaitHealthy(ctx, services()...)
	if err != nil {
		return err
	}
	for service, c := range containers {
		if c.RestartCount > 0 {
			return fmt.Errorf("%s was restarted %d times", service, c.RestartCount)
		}
	}
	for _, port := range []string{"8081", "8082"} {
		response, err := http.Get("http://127.0.0.1:" + port + "/readyz")
		if err != nil {
			return err
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("port %s: /readyz answers %s", port, response.Status)
		}
	}
	return nil
}
