package credentials_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/dispatcher/meters"
	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/store"
)

// sharedPostgres is the Postgres of all tests of this package.
var sharedPostgres servers.SharedPostgres //nolint:gochecknoglobals // one cluster per test binary: TestMain ends it

func TestMain(m *testing.M) {
	m.Run()
	sharedPostgres.Close()
}

// countingLedger is a ledger that counts how often tokens are looked up in it.
type countingLedger struct {
	credentials.Ledger
	lookUps      int
	failsChanges bool   // true if ChangedTokens must fail
	duringLookUp func() // called during a look-up before it returns
	editChanges  func(*store.TokenChanges)
}

func (c *countingLedger) TokenByHash(ctx context.Context, hash []byte) (store.Token, error) {
	c.lookUps++
	t, err := c.Ledger.TokenByHash(ctx, hash)
	if c.duringLookUp != nil {
		c.duringLookUp()
	}
	return t, err
}

func (c *countingLedger) ChangedTokens(ctx context.Context, from int64) (store.TokenChanges, error) {
	if c.failsChanges {
		return store.TokenChanges{}, errBad
	}
	changes, err := c.Ledger.ChangedTokens(ctx, from)
	if c.editChanges != nil {
		c.editChanges(&changes)
	}
	return changes, err
}

// replica is the Registry of one replica, with its ledger and a simulated clock.
type replica struct {
	*credentials.Registry
	ledger  *countingLedger
	t       *testing.T
	elapsed time.Duration
}

func newReplica(t *testing.T, ledger credentials.Ledger) *replica {
	t.Helper()
	r := &replica{ledger: &countingLedger{Ledger: ledger}, t: t}
	started := time.Now()
	r.Registry = credentials.New(credentials.Config{
		Ledger: r.ledger, FleetMode: credentials.FleetAny, Meters: meters.New(nil), Now: func() time.Time { return started.Add(r.elapsed) },
	})
	r.followTokens()
	return r
}

func (r *replica) must(err error) {
	r.t.Helper()
	must.Succeed(r.t, err)
}

func (r *replica) followTokens() {
	r.t.Helper()
	r.must(r.DropChangedTokens(r.t.Context()))
}

// expectAuthentication authenticates device d with a token. It checks the error and how many times the ledger was
// asked (look-ups).
func (r *replica) expectAuthentication(token string, want error, lookUps int) {
	r.t.Helper()
	r.ledger.lookUps = 0
	if _, err := r.Authenticate(r.t.Context(), "d", token); !errors.Is(err, want) {
		r.t.Errorf("%v, want %v", err, want)
	}
	if r.ledger.lookUps != lookUps {
		r.t.Errorf("%d look-ups, want %d", r.ledger.lookUps, lookUps)
	}
}

// createDevice registers a device and returns its token.
func (r *replica) createDevice(id devices.ID) (token string) {
	r.t.Helper()
	_, token, err := r.CreateDevice(r.t.Context(), "op", id, store.DeviceSpec{}, "")
	r.must(err)
	return token
}

// rotateToken creates another token for device d. The older tokens stay valid for the time overlap.
func (r *replica) rotateToken(overlap time.Duration) (token string) {
	r.t.Helper()
	token, _, err := r.RotateToken(r.t.Context(), "op", "d", overlap, "")
	r.must(err)
	return token
}

func (r *replica) deleteDevice() {
	r.t.Helper()
	_, err := r.DeleteDevice(r.t.Context(), "op", "d", false)
	r.must(err)
}

// runOnReplicaPairs runs a test on two replicas that share one ledger: once with Postgres and once with SQLite.
func runOnReplicaPairs(t *testing.T, test func(one, other *replica)) {
	t.Helper()
	for name, open := range map[string]func(*testing.T) *store.Store{
		"postgres": func(t *testing.T) *store.Store {
			t.Helper()
			return backends.OpenPostgres(t, sharedPostgres.NewLedger(t))
		},
		"sqlite": func(t *testing.T) *store.Store {
			t.Helper()
			return backends.OpenSQLite(t, filepath.Join(t.TempDir(), "ledger.db"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ledger := open(t)
			test(newReplica(t, ledger), newReplica(t, ledger))
		})
	}
}

// TestReportsWithTokensCostNoLookUp checks that only the first report of each device looks up the token in the
// ledger. Later reports use the cache.
func TestReportsWithTokensCostNoLookUp(t *testing.T) {
	t.Parallel()
	ledger := backends.OpenSQLite(t, filepath.Join(t.TempDir(), "ledger.db"))
	r := newReplica(t, ledger)
	const fleet = 200
	tokens := make([]string, fleet)
	for i := range tokens {
		tokens[i] = r.createDevice(devices.ID(fmt.Sprint(i)))
	}
	for round := range 10_000 / fleet {
		for i, token := range tokens {
			_, err := r.Authenticate(t.Context(), devices.ID(fmt.Sprint(i)), token)
			must.Succeed(t, err)
		}
		if want := fleet; r.ledger.lookUps != want {
			t.Fatalf("%d look-ups after round %d, want %d", r.ledger.lookUps, round, want)
		}
		for range 30 { // for one report period
			r.elapsed += time.Second
			r.followTokens()
		}
	}
	r.ledger.editChanges = func(c *store.TokenChanges) { c.Now = c.Now.Add(r.elapsed) }
	for range 30 { // the cached token is looked up again after a day
		r.elapsed += 50 * time.Minute
		r.followTokens()
	}
	r.ledger.lookUps = 0
	_, err := r.Authenticate(t.Context(), "0", tokens[0])
	if r.must(err); r.ledger.lookUps != 1 {
		t.Errorf("%d look-ups after a day, want 1", r.ledger.lookUps)
	}
}

// TestARevokedTokenIsForgottenOnTheOtherReplica checks a token that is cached on one replica and revoked on
// another: by a rotation without an overlap, or because the device is deleted. The first replica must refuse it.
// The device may be registered again.
func TestARevokedTokenIsForgottenOnTheOtherReplica(t *testing.T) {
	t.Parallel()
	runOnReplicaPairs(t, func(one, other *replica) {
		first := one.createDevice("d")
		other.expectAuthentication(first, nil, 1)
		other.expectAuthentication(first, nil, 0)
		one.expectAuthentication(first, nil, 1)
		second := one.rotateToken(0)
		one.expectAuthentication(first, devices.ErrUnauthenticated, 1) // the first token is refused even without a call of DropChangedTokens
		other.followTokens()
		other.expectAuthentication(first, devices.ErrUnauthenticated, 1)
		other.expectAuthentication(second, nil, 1)
		one.deleteDevice()
		other.followTokens()
		other.expectAuthentication(second, devices.ErrUnauthenticated, 1)
		third := one.createDevice("d")
		other.expectAuthentication(third, nil, 1)
		other.followTokens()
		other.expectAuthentication(third, nil, 0)
		other.expectAuthentication(second, devices.ErrUnauthenticated, 1)
	})
}

// TestATokenEndsWithItsOverlap checks a token that was replaced with an overlap. A replica that has cached the old
// token refuses it after the overlap, by elapsed time.
func TestATokenEndsWithItsOverlap(t *testing.T) {
	t.Parallel()
	runOnReplicaPairs(t, func(one, other *replica) {
		first := one.createDevice("d")
		other.expectAuthentication(first, nil, 1)
		second := one.rotateToken(time.Hour)
		other.followTokens()
		for _, token := range []string{first, second} {
			other.expectAuthentication(token, nil, 1)
			other.expectAuthentication(token, nil, 0)
		}
		third := one.rotateToken(2 * time.Second) // the overlap of both older tokens is now 2 s
		other.followTokens()
		for _, token := range []string{third, second, first} {
			other.expectAuthentication(token, nil, 1)
		}
		other.elapsed += 2500 * time.Millisecond
		other.expectAuthentication(first, nil, 1) // a new look-up succeeds: the time has passed only for the replicas and not in the ledger
		other.expectAuthentication(third, nil, 0)
	})
}

// TestMemoryIsNotBelievedWithoutTheChanges checks that a replica that cannot read the changes of tokens trusts its
// cached tokens for at most three seconds.
func TestMemoryIsNotBelievedWithoutTheChanges(t *testing.T) {
	t.Parallel()
	runOnReplicaPairs(t, func(one, other *replica) {
		token := one.createDevice("d")
		other.expectAuthentication(token, nil, 1)
		other.ledger.failsChanges = true
		other.elapsed += 2900 * time.Millisecond
		if err := other.DropChangedTokens(other.t.Context()); !errors.Is(err, errBad) {
			other.t.Errorf("following: %v", err)
		}
		other.expectAuthentication(token, nil, 0)
		other.elapsed += 100 * time.Millisecond
		other.expectAuthentication(token, nil, 1)
		other.expectAuthentication(token, nil, 1)
		one.deleteDevice()
		other.expectAuthentication(token, devices.ErrUnauthenticated, 1)
		other.ledger.failsChanges = false
		other.followTokens()
		other.expectAuthentication(token, devices.ErrUnauthenticated, 1) // the token was cached during the outage
	})
}

// TestALookUpThatWasOvertakenIsNotRemembered checks a look-up of a token during which the token is changed. If the
// replica has read this change before the look-up returns, it must not cache the result.
func TestALookUpThatWasOvertakenIsNotRemembered(t *testing.T) {
	t.Parallel()
	runOnReplicaPairs(t, func(one, other *replica) {
		token := one.createDevice("d")
		other.ledger.duringLookUp = func() {
			one.deleteDevice()
			other.followTokens()
		}
		other.expectAuthentication(token, nil, 1)
		other.ledger.duringLookUp = nil
		other.expectAuthentication(token, devices.ErrUnauthenticated, 1)
	})
}

// TestAfterARestoreNothingIsRemembered checks that a restore of the ledger removes all cached tokens of a replica.
func TestAfterARestoreNothingIsRemembered(t *testing.T) {
	t.Parallel()
	ledger := backends.OpenSQLite(t, filepath.Join(t.TempDir(), "ledger.db"))
	r := newReplica(t, ledger)
	token := r.createDevice("d")
	r.expectAuthentication(token, nil, 1)
	r.followTokens()
	r.expectAuthentication(token, nil, 0)
	_, err := ledger.ProtectAfterRestore(t.Context(), "op", 0)
	r.must(err)
	r.followTokens()
	r.expectAuthentication(token, nil, 1)
}

// TestAReadingThatMayHaveMissedAChangeDropsAll checks two cases in which a replica must drop all cached tokens: the
// position of the changes in the ledger became lower, or the ledger no longer has all changes since the last
// reading.
func TestAReadingThatMayHaveMissedAChangeDropsAll(t *testing.T) {
	t.Parallel()
	ledger := backends.OpenSQLite(t, filepath.Join(t.TempDir(), "ledger.db"))
	newReplica(t, ledger).createDevice("d")
	for name, found := range map[string]func(*store.TokenChanges){
		"fell back": func(c *store.TokenChanges) { c.Next-- },
		"too late":  func(c *store.TokenChanges) { c.Now = c.Now.Add(61 * time.Minute) },
	} {
		r := newReplica(t, ledger)
		token := r.rotateToken(0)
		r.followTokens()
		r.expectAuthentication(token, nil, 1)
		r.followTokens()
		r.expectAuthentication(token, nil, 0)
		r.ledger.editChanges = found
		r.followTokens()
		if r.expectAuthentication(token, nil, 1); t.Failed() {
			t.Fatal(name)
		}
	}
}
