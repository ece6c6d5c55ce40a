package simulator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fleetslots/dispatcher/operators"
)

// Credentials selects how the devices of a simulation authenticate.
type Credentials string

// CredentialsFleet uses the fleet token, which is valid for every device. CredentialsOwn uses one token for each device, created through
// the operators' API before the devices start. A device that already exists gets a new token.
const (
	CredentialsFleet Credentials = "fleet"
	CredentialsOwn   Credentials = "own"
)

const (
	registerBatchSize   = 1_000            // devices in one request; a broker creates no more accounts at a time
	registerConcurrency = 8                // concurrent requests, each for one device
	registerTimeout     = 30 * time.Second // how long to retry while the dispatcher is not available
	registerRetry       = time.Second
)

// registerDevices registers the devices and returns their tokens. It returns nil if the devices use the fleet token.
func (c Config) registerDevices(ctx context.Context, operator *Operator, progress *printer) (tokens []string, err error) {
	if c.Credentials == CredentialsFleet {
		return nil, nil
	}
	tokens = make([]string, 0, c.Devices)
	for len(tokens) < c.Devices {
		before := len(tokens)
		ids := make([]string, min(registerBatchSize, c.Devices-before))
		for i := range ids {
			ids[i] = deviceID(c.DevicePrefix, before+i)
		}
		lot, err := createAccountsAndTokens(ctx, operator, ids, func(made int) { progress.showRegistered(before+made, c.Devices) })
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, lot...)
	}
	return tokens, nil
}

// createAccountsAndTokens makes sure that each device has an account, and returns the tokens in the order of ids. If the dispatcher
// creates accounts at a broker, createMissingTokens creates the tokens of existing devices with single requests.
func createAccountsAndTokens(ctx context.Context, operator *Operator, ids []string, onProgress func(made int)) (tokens []string, err error) {
	tokens, err = importDevices(ctx, operator, ids, "rotate")
	if problem, ok := errors.AsType[*operators.Problem](err); ok && problem.Code == "one_by_one" {
		if tokens, err = importDevices(ctx, operator, ids, "skip"); err == nil {
			return createMissingTokens(ctx, operator, ids, tokens, onProgress)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("registering %d devices from %s: %w", len(ids), ids[0], err)
	}
	onProgress(len(ids))
	return tokens, nil
}

// importDevices imports the devices in ids and returns their tokens. If onExisting is "skip", the token of a device that
// already exists is "".
func importDevices(ctx context.Context, operator *Operator, ids []string, onExisting string) (tokens []string, err error) {
	file := "device\n" + strings.Join(ids, "\n") + "\n"
	err = retryWhileUnavailable(ctx, func(ctx context.Context) error {
		var answer strings.Builder
		err := operator.Devices.Import(ctx, strings.NewReader(file), operators.TypeCSV, onExisting, operators.TypeCSV, &answer)
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
			return fmt.Errorf("the response has no line for %s", ids[len(tokens)])
		}
		return nil
	})
	return tokens, err
}

// createMissingTokens creates a token for each device whose entry in tokens is "".
func createMissingTokens(ctx context.Context, operator *Operator, ids, tokens []string, onProgress func(made int)) (allTokens []string, err error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(registerConcurrency)
	var mu sync.Mutex
	made := 0
	for i, id := range ids {
		group.Go(func() error {
			if tokens[i] == "" {
				err := retryWhileUnavailable(ctx, func(ctx context.Context) error {
					rotated, err := operator.Devices.RotateToken(ctx, id, operators.Rotation{OverlapMS: new(int64(0))})
					tokens[i] = rotated.Token
					return err
				})
				if err != nil {
					return fmt.Errorf("rotating the token of %s: %w", id, err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			made++
			onProgress(made)
			return nil
		})
	}
	return tokens, group.Wait()
}

// retryWhileUnavailable repeats call while the dispatcher or its broker is not available, for registerTimeout. It does not interrupt a
// call, because a broker may need minutes to create accounts.
func retryWhileUnavailable(ctx context.Context, call func(context.Context) error) error {
	began := time.Now()
	var lastErr error
	for {
		err := call(ctx)
		if err != nil && ctx.Err() != nil && lastErr != nil {
			return lastErr
		}
		if !operators.IsTransient(err) || time.Since(began) > registerTimeout {
			return err
		}
		lastErr = err
		select {
		case <-time.After(registerRetry):
		case <-ctx.Done():
			return err
		}
	}
}
