package simulator

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fleetslots/dispatcher/operators"
)

// Credentials is what the devices of a simulation authenticate with.
type Credentials string

// Fleet: the fleet token, which stands for any device. Own: a token for each,
// made through the operators' API before the devices start; a device that is
// there already gets a new one.
const (
	CredentialsFleet Credentials = "fleet"
	CredentialsOwn   Credentials = "own"
)

const (
	registerAtOnce   = 8                // requests under way
	registerPatience = 30 * time.Second // with a dispatcher that is not available
	registerRetry    = time.Second
)

// register makes sure that each device has an account, and returns their tokens.
func register(ctx context.Context, o *Operator, ids []string, done func(made int)) ([]string, error) {
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

// registerOne tries again while the dispatcher or its broker is not available.
// An answer that was lost shows as a device that is there already.
func registerOne(ctx context.Context, o *Operator, id string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, registerPatience)
	defer cancel()
	for {
		made, err := o.Devices.Create(ctx, operators.NewDevice{ID: id})
		token := made.Token
		if operators.Refused(err, http.StatusConflict) {
			var rotated operators.TokenMade
			rotated, err = o.Devices.RotateToken(ctx, id, 0)
			token = rotated.Token
		}
		if !operators.Transient(err) {
			return token, err
		}
		select {
		case <-time.After(registerRetry):
		case <-ctx.Done():
			return "", err
		}
	}
}
