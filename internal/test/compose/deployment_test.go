package compose

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// deployment is docker-compose.yml in a folder with the files of HEAD, like a new clone of the repository.
type deployment struct {
	dir     string // folder of everything that is written
	project string // folder of docker-compose.yml
	log     func(format string, args ...any)

	device, password string // an account at the broker, see checkMosquittoRestart
}

// environment returns the environment of the commands. The variables make the fleet small.
func (d *deployment) environment() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + d.dir, "DOCKER_CONFIG=" + filepath.Join(d.dir, "config"),
		"FLEET_DEVICES=120", "FLEET_TASKS=900", "FLEET_WORK=2s", "FLEET_LEASE=8s", "REPORT_PERIOD=3s",
	}
}

// command returns a command that runs in the folder of docker-compose.yml.
func (d *deployment) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = d.project, d.environment()
	return cmd
}

// output runs a command and returns what it prints. The error contains the end of its output.
func (d *deployment) output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := d.command(ctx, name, args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, tail(string(out), 3000))
	}
	return strings.TrimSpace(string(out)), nil
}

// compose runs `docker compose`. The only file that it reads is docker-compose.yml, as it is in HEAD.
func (d *deployment) compose(ctx context.Context, args ...string) (string, error) {
	return d.output(ctx, "docker", append([]string{"compose"}, args...)...)
}

// container is a part of the answer of `docker inspect`.
type container struct {
	ID    string `json:"Id"`
	State struct {
		Status    string
		StartedAt string
		Pid       int
		Health    *struct{ Status string }
	}
	RestartCount int
	Config       struct {
		User        string
		StopTimeout *int
	}
	HostConfig struct {
		ReadonlyRootfs bool
		CapDrop        []string
		SecurityOpt    []string
		Tmpfs          map[string]string
		Memory         int64
		PidsLimit      *int64
		ShmSize        int64
		LogConfig      struct {
			Type   string
			Config map[string]string
		}
		RestartPolicy struct{ Name string }
		PortBindings  map[string][]struct{ HostIP string }
	}
	NetworkSettings struct {
		Networks map[string]struct{ IPAddress string }
	}
	Mounts []struct {
		Destination string
		RW          bool
	}
}

func (d *deployment) inspect(ctx context.Context, service string) (c container, err error) {
	id, err := d.compose(ctx, "ps", "--all", "--quiet", service)
	if err != nil {
		return c, err
	}
	out, err := d.output(ctx, "docker", "inspect", id)
	if err != nil {
		return c, err
	}
	var all []container
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 1 {
		return c, fmt.Errorf("%d containers of %s: %w", len(all), service, err)
	}
	return all[0], nil
}

// awaitHealthy waits until the services are healthy, and returns their containers.
func (d *deployment) awaitHealthy(ctx context.Context, services ...string) (map[string]container, error) {
	healthy := map[string]container{}
	for _, service := range services {
		err := poll(ctx, 3*time.Minute, func() error {
			c, err := d.inspect(ctx, service)
			if err != nil {
				return err
			}
			if c.State.Health == nil || c.State.Health.Status != "healthy" || c.State.Status != "running" {
				return fmt.Errorf("%s is %s: %+v", service, c.State.Status, c.State.Health)
			}
			healthy[service] = c
			return nil
		})
		if err != nil {
			logs, _ := d.compose(ctx, "logs", "--tail", "30", service)
			return nil, fmt.Errorf("%w\n%s", err, logs)
		}
	}
	return healthy, nil
}

// operator returns a client of the first replica, with the token in .env.
func (d *deployment) operator() (*operators.Client, error) {
	env, err := os.ReadFile(filepath.Join(d.project, ".env"))
	if err != nil {
		return nil, err
	}
	_, rest, _ := bytes.Cut(env, []byte("\nADMIN_TOKEN="))
	token, _, _ := bytes.Cut(rest, []byte("\n"))
	return operators.New(operators.Config{URL: "http://127.0.0.1:8081", Token: string(token)})
}

// exportHEAD writes the files of HEAD into the folder of the project.
func (d *deployment) exportHEAD(ctx context.Context, repository string) error {
	archive := filepath.Join(d.dir, "head.tar")
	if _, err := d.output(ctx, "git", "-C", repository, "archive", "--output", archive, "HEAD"); err != nil {
		return err
	}
	_, err := d.output(ctx, "tar", "-xf", archive)
	return err
}
