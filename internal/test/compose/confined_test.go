package compose

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Limits of docker-compose.yml.
const (
	processLimit     = 512
	dispatcherMemory = 4 << 30 // bytes
	sharedMemory     = 256 << 20
)

func serviceUsers() map[string]string {
	return map[string]string{"postgres": "postgres", "redis": "redis", "mosquitto": "mosquitto", "dispatcher-1": "nonroot", "dispatcher-2": "nonroot"}
}

// eachContainer calls check for each service without a profile, and returns all errors.
func (d *deployment) eachContainer(ctx context.Context, check func(service string, c container) error) error {
	var errs []error
	for _, service := range services() {
		c, err := d.inspect(ctx, service)
		if err == nil {
			err = check(service, c)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", service, err))
		}
	}
	return errors.Join(errs...)
}

// checkInspect checks that the engine has accepted the limits of docker-compose.yml.
func (d *deployment) checkInspect(ctx context.Context) error {
	published := map[string][]string{"mosquitto": {"1883/tcp"}, "dispatcher-1": {"8080/tcp"}, "dispatcher-2": {"8080/tcp"}}
	return d.eachContainer(ctx, func(service string, c container) error {
		h := c.HostConfig
		var ports []string
		for port, bindings := range h.PortBindings {
			ports = append(ports, port)
			if len(bindings) != 1 || bindings[0].HostIP != "127.0.0.1" {
				return fmt.Errorf("port %s is published at %v", port, bindings)
			}
		}
		isDispatcher := strings.HasPrefix(service, "dispatcher-")
		switch {
		case !h.ReadonlyRootfs || !slices.Equal(h.CapDrop, []string{"ALL"}) || !slices.Equal(h.SecurityOpt, []string{"no-new-privileges:true"}):
			return fmt.Errorf("read-only %t, dropped %q, security options %q", h.ReadonlyRootfs, h.CapDrop, h.SecurityOpt)
		case c.Config.User != serviceUsers()[service]:
			return fmt.Errorf("the user is %q", c.Config.User)
		case h.PidsLimit == nil || *h.PidsLimit != processLimit || isDispatcher && h.Memory != dispatcherMemory || service == "postgres" && h.ShmSize != sharedMemory:
			return fmt.Errorf("processes %v, memory %d, shared memory %d", h.PidsLimit, h.Memory, h.ShmSize)
		case h.LogConfig.Type != "json-file" || h.LogConfig.Config["max-size"] != "10m" || h.LogConfig.Config["max-file"] != "3":
			return fmt.Errorf("the logs are %+v", h.LogConfig)
		case h.RestartPolicy.Name != "unless-stopped":
			return fmt.Errorf("the restart policy is %+v", h.RestartPolicy)
		case !slices.Equal(ports, published[service]):
			return fmt.Errorf("the published ports are %q", ports)
		}
		return nil
	})
}

// checkInside checks the same limits as checkInspect from inside the containers, through the /proc file system of their first process.
func (d *deployment) checkInside(ctx context.Context) error {
	err := d.eachContainer(ctx, func(service string, c container) error {
		inside := fmt.Sprintf("/proc/%d/root", c.State.Pid)
		return errors.Join(checkProcess(c.State.Pid), checkReadOnly(inside, c), d.checkLimits(service, inside))
	})
	if err != nil {
		return err
	}
	for _, service := range []string{"postgres", "redis", "mosquitto"} { // the image of the dispatcher has no shell
		out, err := d.compose(ctx, "exec", "-T", service, "sh", "-c", "id -un; touch /written 2>&1 || true")
		if err != nil || !strings.HasPrefix(out, serviceUsers()[service]+"\n") || !strings.Contains(out, "Read-only file system") {
			return fmt.Errorf("%s: %w: %s", service, err, out)
		}
	}
	return d.checkNetworks(ctx)
}

func checkProcess(pid int) error {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return err
	}
	for _, line := range []string{`CapPrm:\t0+`, `CapEff:\t0+`, `CapBnd:\t0+`, `CapAmb:\t0+`, `NoNewPrivs:\t1`, `Uid:\t[1-9]\d*\t[1-9].*`, `Gid:\t\d+\t.*`} {
		if !regexp.MustCompile(`(?m)^` + line + `$`).Match(status) {
			return fmt.Errorf("process %d has no line %s:\n%s", pid, line, status)
		}
	}
	return nil
}

// checkReadOnly tries to write to the file system of the container, and to the files that it mounts. It tries as root,
// so that only a read-only file system can refuse it.
func checkReadOnly(inside string, c container) error {
	paths := []string{"/written", "/etc/written"}
	for _, mount := range c.Mounts {
		if !mount.RW {
			paths = append(paths, mount.Destination)
		}
	}
	for _, path := range paths {
		file, err := os.OpenFile(filepath.Join(inside, path), os.O_WRONLY|os.O_CREATE, 0o600)
		if err == nil {
			_ = file.Close()
		}
		if !errors.Is(err, syscall.EROFS) {
			return fmt.Errorf("opening %s for writing: %w, want a read-only file system", path, err)
		}
	}
	return nil
}

// checkLimits reads the limits in the control groups of the container, of either version.
func (d *deployment) checkLimits(service, inside string) error {
	limit := func(paths ...string) string {
		for _, path := range paths {
			if content, err := os.ReadFile(filepath.Join(inside, "sys/fs/cgroup", path)); err == nil {
				return strings.TrimSpace(string(content))
			}
		}
		return ""
	}
	if got := limit("pids/pids.max", "pids.max"); got != fmt.Sprint(processLimit) {
		return fmt.Errorf("at most %q processes", got)
	}
	if got := limit("memory/memory.limit_in_bytes", "memory.max"); strings.HasPrefix(service, "dispatcher-") && got != fmt.Sprint(dispatcherMemory) {
		return fmt.Errorf("at most %q bytes of memory", got)
	}
	var shm syscall.Statfs_t
	if err := syscall.Statfs(filepath.Join(inside, "dev/shm"), &shm); err != nil {
		return err
	}
	if size := int64(shm.Blocks) * shm.Bsize; service == "postgres" && size != sharedMemory {
		return fmt.Errorf("%d bytes of shared memory", size)
	}
	return nil
}

// checkNetworks checks the network named data. The container of the broker is only on the network of the devices, and must reach neither
// Postgres nor Redis. The health checks have shown that the replicas and their servers reach one another.
func (d *deployment) checkNetworks(ctx context.Context) error {
	if internal, err := d.output(ctx, "docker", "network", "inspect", "--format", "{{.Internal}}", "dispatcher_data"); err != nil || internal != "true" {
		return fmt.Errorf("the network data is internal: %s: %w", internal, err)
	}
	reach := func(from, service, port string) error {
		c, err := d.inspect(ctx, service)
		if err == nil {
			_, err = d.compose(ctx, "exec", "-T", from, "busybox", "nc", "-w", "3", c.NetworkSettings.Networks["dispatcher_data"].IPAddress, port, "-e", "true")
		}
		return err
	}
	if err := reach("redis", "postgres", "5432"); err != nil {
		return err
	}
	for service, port := range map[string]string{"postgres": "5432", "redis": "6379"} {
		if reach("mosquitto", service, port) == nil {
			return fmt.Errorf("the broker reaches %s", service)
		}
	}
	for port, open := range map[string]bool{"8081": true, "8082": true, "1883": true, "8080": false, "1884": false, "5432": false, "6379": false} {
		connection, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = connection.Close()
		}
		if (err == nil) != open {
			return fmt.Errorf("port %s of this machine is open: %t", port, err == nil)
		}
	}
	return nil
}
