package compose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// checkFleet runs the fleet without a fault. Both replicas must have answered reports over both transports.
func (d *deployment) checkFleet(ctx context.Context) error {
	if err := d.underLoad(ctx, func(context.Context) error { return nil }); err != nil {
		return err
	}
	for _, port := range []string{"8081", "8082"} {
		for _, transport := range []string{"http", "mqtt"} {
			if n, err := reportCount(port, transport); err != nil || n == 0 {
				return fmt.Errorf("the replica at port %s answered %.0f reports over %s: %w", port, n, transport, err)
			}
		}
	}
	return nil
}

// reportCount returns how many reports over this transport a replica has answered, with any reason.
func reportCount(port, transport string) (sum float64, err error) {
	response, err := http.Get("http://127.0.0.1:" + port + "/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	line := regexp.MustCompile(fmt.Sprintf(`(?m)^dispatcher_reports_total\{[^}]*transport="%s"[^}]*\} (\S+)$`, transport))
	for _, match := range line.FindAllSubmatch(content, -1) {
		n, err := strconv.ParseFloat(string(match[1]), 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// checkReplicaKilled kills the process of a replica. The engine must start it again.
func (d *deployment) checkReplicaKilled(ctx context.Context) error {
	return d.underLoad(ctx, func(ctx context.Context) error {
		before, err := d.inspect(ctx, "dispatcher-1")
		if err != nil {
			return err
		}
		if err := syscall.Kill(before.State.Pid, syscall.SIGKILL); err != nil {
			return err
		}
		return d.awaitRestart(ctx, "dispatcher-1", before)
	})
}

// awaitRestart waits until a service has been restarted and is healthy. before is the state of its container before the
// restart.
func (d *deployment) awaitRestart(ctx context.Context, service string, before container) error {
	err := poll(ctx, time.Minute, func() error {
		c, err := d.inspect(ctx, service)
		if err == nil && (c.State.StartedAt == before.State.StartedAt || c.State.Pid == 0) {
			err = fmt.Errorf("%s has not been started again: %+v", service, c.State)
		}
		return err
	})
	if err != nil {
		return err
	}
	_, err = d.awaitHealthy(ctx, service)
	return err
}

// restart restarts a service as operators do.
func (d *deployment) restart(ctx context.Context, service string) error {
	before, err := d.inspect(ctx, service)
	if err != nil {
		return err
	}
	if _, err := d.compose(ctx, "restart", service); err != nil {
		return err
	}
	return d.awaitRestart(ctx, service, before)
}

func (d *deployment) checkRedisRestart(ctx context.Context) error {
	return d.underLoad(ctx, func(ctx context.Context) error { return d.restart(ctx, "redis") })
}

// checkMosquittoRestart creates a device, whose account the dispatcher creates at the broker. After the restart, the
// broker still has the account.
func (d *deployment) checkMosquittoRestart(ctx context.Context) error {
	operator, err := d.operator()
	if err != nil {
		return err
	}
	created, err := operator.Devices.Create(ctx, operators.NewDevice{ID: "kept-device"})
	if err != nil {
		return err
	}
	d.device, d.password = "kept-device", created.Token
	if err := d.checkAccount(ctx); err != nil {
		return err
	}
	return d.underLoad(ctx, func(ctx context.Context) error {
		if err := d.restart(ctx, "mosquitto"); err != nil {
			return err
		}
		return d.checkAccount(ctx)
	})
}

// checkAccount checks that the device can subscribe at the broker with its password, and only with it.
func (d *deployment) checkAccount(ctx context.Context) error {
	subscribe := func(password string) error {
		out, err := d.compose(ctx, "exec", "-T", "mosquitto", "mosquitto_sub", "-p", "1883", "-i", d.device, "-u", d.device,
			"-P", password, "-t", "fleet/v1/"+d.device+"/reply", "-q", "1", "-E", "-W", "5")
		if err != nil {
			return errors.New("the device cannot subscribe: " + out)
		}
		return nil
	}
	if subscribe("another-password") == nil {
		return errors.New("the broker accepts a wrong password")
	}
	return poll(ctx, 30*time.Second, func() error { return subscribe(d.password) })
}

// checkRollingRestart replaces the containers of the replicas one after another. Each must end with exit status 0.
func (d *deployment) checkRollingRestart(ctx context.Context) error {
	return d.underLoad(ctx, func(ctx context.Context) error {
		for _, service := range []string{"dispatcher-1", "dispatcher-2"} {
			before, err := d.inspect(ctx, service)
			if err != nil {
				return err
			}
			began := time.Now()
			if _, err := d.compose(ctx, "up", "-d", "--no-deps", "--force-recreate", service); err != nil {
				return err
			}
			if err := d.awaitRestart(ctx, service, before); err != nil {
				return err
			}
			status, err := d.output(ctx, "docker", "events", "--since", strconv.FormatInt(began.Unix()-1, 10), "--until", strconv.FormatInt(time.Now().Unix(), 10),
				"--filter", "event=die", "--filter", "container="+before.ID, "--format", "{{.Actor.Attributes.exitCode}}")
			if err != nil || status != "0" {
				return fmt.Errorf("%s ended with status %q: %w", service, status, err)
			}
		}
		return nil
	})
}

// checkDownAndUp removes the containers and starts them again. The ledger and the accounts of the broker are the same.
func (d *deployment) checkDownAndUp(ctx context.Context) error {
	before, err := d.readLedger(ctx)
	if err != nil {
		return err
	}
	if _, err := d.compose(ctx, "down"); err != nil {
		return err
	}
	if left, err := d.output(ctx, "docker", "ps", "--all", "--quiet"); err != nil || left != "" {
		return fmt.Errorf("containers are left: %s: %w", left, err)
	}
	if err := d.checkUp(ctx); err != nil {
		return err
	}
	if err := d.checkHealthy(ctx); err != nil {
		return err
	}
	after, err := d.readLedger(ctx)
	if err != nil {
		return err
	}
	if before != after {
		return fmt.Errorf("the ledger was\n%s\nand is\n%s", before, after)
	}
	return d.checkAccount(ctx)
}

// readLedger returns the pool, the batches and the device as the API shows them.
func (d *deployment) readLedger(ctx context.Context) (string, error) {
	operator, err := d.operator()
	if err != nil {
		return "", err
	}
	var all []string
	for _, path := range []string{"/v1/pools/fleet", "/v1/batches", "/v1/devices/" + d.device} {
		content, err := operator.Get(ctx, path, nil)
		if err != nil {
			return "", err
		}
		all = append(all, string(content))
	}
	text := regexp.MustCompile(`"rate_per_minute":[^,]*,`).ReplaceAllString(strings.Join(all, "\n"), "")
	if !strings.Contains(text, `"succeeded":900`) {
		return "", fmt.Errorf("no batch has 900 succeeded tasks: %s", text)
	}
	return text, nil
}

// checkMonitoring starts the monitoring profile. Prometheus must scrape both replicas and evaluate the alerts.
func (d *deployment) checkMonitoring(ctx context.Context) error {
	if _, err := d.compose(ctx, "--profile", "monitoring", "up", "-d"); err != nil {
		return err
	}
	if _, err := d.awaitHealthy(ctx, "prometheus", "grafana"); err != nil {
		return err
	}
	return poll(ctx, 3*time.Minute, func() error { // Prometheus evaluates the alerts once a minute
		up, err := askPrometheus("query?query=" + url.QueryEscape(`count(up{job="dispatcher"} == 1)`))
		if err != nil || !regexp.MustCompile(`"value":\[[0-9.]+,"2"\]`).MatchString(up) {
			return fmt.Errorf("not both replicas are scraped: %w: %s", err, up)
		}
		rules, err := askPrometheus("rules?type=alert")
		if err != nil || !strings.Contains(rules, `"health":"ok"`) || regexp.MustCompile(`"health":"(err|unknown)"`).MatchString(rules) {
			return fmt.Errorf("not all alerts are evaluated: %w: %s", err, rules)
		}
		return nil
	})
}

// askPrometheus returns the answer of an operation of the API of Prometheus.
func askPrometheus(operation string) (string, error) {
	response, err := http.Get("http://127.0.0.1:9090/api/v1/" + operation)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return string(content), err
}

// checkRemoved removes the deployment with its data.
func (d *deployment) checkRemoved(ctx context.Context) error {
	if _, err := d.compose(ctx, "--profile", "monitoring", "--profile", "fleet", "down", "--volumes"); err != nil {
		return err
	}
	for _, kind := range []string{"container", "volume", "network"} {
		left, err := d.output(ctx, "docker", kind, "ls", "--quiet", "--filter", "label=com.docker.compose.project=dispatcher")
		if err != nil || left != "" {
			return fmt.Errorf("%s left: %s: %w", kind, left, err)
		}
	}
	return nil
}
