package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// cleanup closes resources in the reverse order of their opening.
type cleanup struct{ steps []cleanupStep }

type cleanupStep struct {
	name  string
	close func() error
}

func (c *cleanup) add(name string, close func() error) {
	c.steps = append(c.steps, cleanupStep{name, close})
}

// run closes everything once; a step that fails or hangs does not keep the rest open.
func (c *cleanup) run(ctx context.Context) error {
	var errs []error
	for _, step := range slices.Backward(c.steps) {
		err := within(ctx, func(context.Context) error { return step.close() })
		if err != nil && !closedBefore(err) {
			errs = append(errs, fmt.Errorf("closing %s: %w", step.name, err))
		}
	}
	c.steps = nil
	return errors.Join(errs...)
}

// closedBefore says whether there was nobody left to say goodbye to: a server
// resets connections when it restarts, and an idle one notices when it is closed.
func closedBefore(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// within runs a step. One that goes on when ctx has ended is left behind: a
// driver that waits for a server that is silent knows no context.
func within(ctx context.Context, step func(context.Context) error) error {
	return rescue.Within(ctx, func() error { return step(ctx) }) //nolint:wrapcheck // the step's own
}
