package simulator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fleetslots/dispatcher/operators"
)

// Credentials is what the devices of a simulation authenticate with.
type Credentials string

// Fleet: the fleet token, which stands for any device. Own: a token for each,
// made through the operators' API before the devices start; a device that is
// there already gets one more.
const (
	CredentialsFleet Credentials = "fleet"
	CredentialsOwn   Credentials = "own"
)

const (
	registerLot      = 10_000           // devices in a request
	registerAtOnce   = 8                // requests under way, of a device each
	registerPatience = 30 * time.Second // with a dispatcher that is not available
	registerRetry    = time.Second
)

// ownTokens registers the devices, and returns their tokens; none, if they use the
// fleet token.
func (c Config) ownTokens(ctx context.Context, o *Operator, p *printer) ([]string, error) {
	if c.Credentials == CredentialsFleet {
		return nil, nil
	}
	tokens := make([]string, 0, c.Devices)
	for len(tokens) < c.Devices {
		before := len(tokens)
		ids := make([]string, min(registerLot, c.Devices-before))
		for i := range ids {
			ids[i] = deviceID(c.DevicePrefix, before+i)
		}
		lot, err := register(ctx, o, ids, func(made int) { p.registered(before+made, c.Devices) })
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, lot...)
	}
	return tokens, nil
}

// register makes sure that each device has an account, and returns their tokens. A
// dispatcher that maintains accounts at a broker takes one device at a time.
func register(ctx context.Context, o *Operator, ids []string, done func(made int)) ([]string, error) {
	tokens, err := registerTogether(ctx, o, ids)
	if problem, ok := errors.AsType[*operators.Problem](err); ok && problem.Code == "one_by_one" {
		return registerEach(ctx, o, ids, done)
	}
	if err != nil {
		return nil, fmt.Errorf("registering %d devices from %s: %w", len(ids), ids[0], err)
	}
	done(len(ids))
	return tokens, nil
}

func registerTogether(ctx context.Context, o *Operator, ids []string) (tokens []string, err error) {
	file := "device\n" + strings.Join(ids, "\n") + "\n"
	err = patiently(ctx, func(ctx context.Context) error {
		var answer strings.Builder
		err := o.Devices.Import(ctx, strings.NewReader(file), operators.TypeCSV, "rotate", operators.TypeCSV, &answer)
		if err != nil {
			return err
		}
		tokens = make([]string, 0, len(ids))
		for line := range strings.Lines(answer.String()) {
			if _, token, _ := strings.Cut(strings.TrimSpace(line), ","); len(tokens) < len(ids) && strings.HasPrefix(line, ids[len(tokens)]+",") {
				tokens = append(tokens, token)
			}
		}
		if len(tokens) < len(ids) {
			return fmt.Errorf("the answer has no token for %s", ids[len(tokens)])
		}
		return nil
	})
	return tokens, err
}

func registerEach(ctx context.Context, o *Operator, ids []string, done func(made int)) ([]string, error) {
	tokens := make([]string, len(ids))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(registerAtOnce)
	var mu sync.Mutex
	made := 0
	for i, id := range ids {
		group.Go(func() (err error) {
			if tokens[i], err = registerOne(ctx, o, id); err != nil {
				return fmt.Errorf("registering %s: %w", id, err)
			}
			mu.Lock()
			defer mu.Unlock()
			made++
			done(made)
			return nil
		})
	}
	return tokens, group.Wait()
}

// registerOne makes a device, or a token for one that is there already: that is also
// how an answer shows that was lost.
func registerOne(ctx context.Context, o *Operator, id string) (token string, err error) {
	err = patiently(ctx, func(ctx context.Context) error {
		made, err := o.Devices.Create(ctx, operators.NewDevice{ID: id})
		token = made.Token
		if operators.Refused(err, http.StatusConflict) {
			var rotated operators.TokenMade
			rotated, err = o.Devices.RotateToken(ctx, id, 0)
			token = rotated.Token
		}
		return err
	})
	return token, err
}

// patiently tries again while the dispatcher or its broker is not available.
func patiently(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, registerPatience)
	defer cancel()
	for {
		err := do(ctx)
		if !operators.Transient(err) {
			return err
		}
		select {
		case <-time.After(registerRetry):
		case <-ctx.Done():
			return err
		}
	}
}
