package compose

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/await"
)

// capacity is the capacity of the pool in docker-compose.yml.
const capacity = 60

// fleet is one run of the service fleet.
type fleet struct {
	printed await.Output
	ended   chan struct{} // closed when it has ended
	err     error
}

// startFleet starts the fleet with the command of the README.
func (d *deployment) startFleet(ctx context.Context) (*fleet, error) {
	f := &fleet{ended: make(chan struct{})}
	cmd := d.command(ctx, "docker", "compose", "--profile", "fleet", "run", "--rm", "-T", "fleet")
	cmd.Stdout, cmd.Stderr = &f.printed, &f.printed
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		f.err = cmd.Wait()
		close(f.ended)
	}()
	return f, nil
}

// awaitBusy waits until at least 50 of the 60 slots are held.
func (f *fleet) awaitBusy(ctx context.Context) error {
	held := regexp.MustCompile(`held (\d+)/60 `)
	return poll(ctx, 2*time.Minute, func() error {
		lines := held.FindAllStringSubmatch(f.printed.String(), -1)
		if len(lines) == 0 {
			return fmt.Errorf("the fleet is not at work: %s", tail(f.printed.String(), 1000))
		}
		if n, _ := strconv.Atoi(lines[len(lines)-1][1]); n < 50 {
			return fmt.Errorf("%d slots are held", n)
		}
		return nil
	})
}

// awaitEnd waits until the fleet has ended, and returns an error if the fleet found a broken promise. The external system of the fleet
// counts the devices that are inside at once. It does not count a device that is inside after its lease has ended.
func (f *fleet) awaitEnd(ctx context.Context, log func(string, ...any)) error {
	select {
	case <-f.ended:
	case <-ctx.Done():
		return fmt.Errorf("the fleet did not end: %s", tail(f.printed.String(), 1000))
	}
	out := f.printed.String()
	if f.err != nil {
		return fmt.Errorf("the fleet: %w\n%s", f.err, tail(out, 4000))
	}
	inside := regexp.MustCompile(`inside     high-water mark (\d+) of 60, .*; within leases 0, 0 and 0 of these`).FindStringSubmatch(out)
	if inside == nil {
		return fmt.Errorf("the fleet does not say how many devices were inside:\n%s", tail(out, 4000))
	}
	log("%s\n%s", inside[0], regexp.MustCompile(`(?m)^results .*$`).FindString(out))
	if most, _ := strconv.Atoi(inside[1]); most < capacity {
		return fmt.Errorf("only %d devices were inside at once: the capacity was not tested", most)
	}
	return nil
}

// underLoad runs the fleet and causes a fault while it is at work. The fleet must still be at work when fault returns.
func (d *deployment) underLoad(ctx context.Context, fault func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 6*time.Minute)
	defer cancel()
	f, err := d.startFleet(ctx)
	if err != nil {
		return err
	}
	if err := f.awaitBusy(ctx); err != nil {
		return err
	}
	if err := fault(ctx); err != nil {
		return err
	}
	select {
	case <-f.ended:
		return errors.New("the fleet ended before the fault was over")
	default:
	}
	return f.awaitEnd(ctx, d.log)
}
