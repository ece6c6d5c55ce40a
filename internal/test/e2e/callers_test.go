package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/simulator"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/operators"
)

// TestCallersShareTheSlots lets programs that are not devices use one pool together with the fleet of TestFaults:
// half of these callers run a command under `dispatcher run`, and half use the API. Faults happen meanwhile: some
// `dispatcher run` are killed, some callers are cut off so that they cannot renew their leases, Redis is wiped, and
// a replica is killed. The capacity must never be exceeded. No slot may be used twice at once, so the commands of
// lost leases must end before their slots are granted again. Nothing may be left at the end.
//
// With -short, 10 callers and 48 devices in 12 slots meet each fault once. The mixed runs have 60 devices and 40
// callers, which hold at most 5 of 12 slots, and 150 faults, half of them with two replicas and half with three:
//
//	go test ./internal/test/e2e -run 'TestCallersShareTheSlots/mixed' -v -timeout 90m
func TestCallersShareTheSlots(t *testing.T) {
	t.Parallel()
	for _, m := range callerMixes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			runJudged(t, func(t *testing.T, v *verdict) {
				t.Helper()
				x := newExperiment(t, v)
				x.fleet.ExternalAddr = servers.FreeAddr(t)
				m.prepare(x)
				x.deploy()
				c := newCallers(x, m)
				x.run(c.callerFaults()...)
			})
		})
	}
}

// callerMix is the size of an experiment with callers: its callers, devices, replicas and faults.
type callerMix struct {
	name           string
	callers        int
	cutOffCallers  int // the number of these callers that hold a slot until they are cut off
	maxCallerSlots int // the maximum number of slots that callers hold; 0 means no maximum
	devices        int // 0 means the number of TestFaults
	replicas       int
	faultCount     int // the number of faults, from a fixed cycle; 0 means the short list of callerFaults
}

func callerMixes() []callerMix {
	if testing.Short() {
		return []callerMix{{name: "few", callers: 10, cutOffCallers: 2, maxCallerSlots: 5, replicas: 2}}
	}
	return []callerMix{
		{name: "many", callers: 40, cutOffCallers: 8, replicas: 2},
		{name: "mixed, two replicas", callers: 40, cutOffCallers: 2, maxCallerSlots: 5, devices: 60, replicas: 2, faultCount: 75},
		{name: "mixed, three replicas", callers: 40, cutOffCallers: 2, maxCallerSlots: 5, devices: 60, replicas: 3, faultCount: 75},
	}
}

// prepare changes an experiment to this size before it is deployed.
func (m callerMix) prepare(x *experiment) {
	x.extraReplicas = m.replicas - 2
	if m.devices > 0 {
		x.shrink()
		x.fleet.Devices, x.fleet.Tasks, x.fleet.Silent = m.devices, m.devices, 0.06
		x.timeLimit = time.Hour
		x.fleet.Timeout = x.timeLimit
	}
	if testing.Short() { // few tasks remain when the callers have ended
		x.fleet.Tasks, x.fleet.Silent = 24, 0.06
	}
}

// These are the times that callers use.
const (
	maxCallerLease = 10 * time.Second // the longest lease; the replicas keep 2 s of it as margin
	callerGrace    = time.Second      // time between SIGTERM and SIGKILL for the commands
	cutOffWorkTime = time.Hour        // work of callers that are cut off: only a lost lease or the end of the test ends it
)

// callers are programs that hold slots of the same pool as the fleet. Some of them hold their slots for long and
// reach the server through a proxy, which interrupts their connections for a while.
type callers struct {
	*experiment
	mix          callerMix
	proxy        *servers.Proxy
	token        string
	childStderr  *os.File // standard error of all processes; end of file when none is left
	stderrClosed chan struct{}

	loops sync.WaitGroup
	end   context.CancelFunc

	mu           sync.Mutex
	processes    map[string]*os.Process // key: holder
	output       bytes.Buffer
	endingCounts map[string]int // number of leases by how they ended
	peakGrants   [2]int         // the highest number of grants in force: of all holders, and of callers
	errs         []error
}

// These are the ways in which the lease of a caller can end.
const (
	workDone     = "done"   // the work or the test has ended
	leaseLost    = "lost"   // the lease could not be renewed
	runKilled    = "killed" // its `dispatcher run` was killed
	neverGranted = "never"  // the slot was not granted
)

func newCallers(x *experiment, m callerMix) *callers {
	return &callers{experiment: x, mix: m, processes: map[string]*os.Process{}, endingCounts: map[string]int{}, stderrClosed: make(chan struct{})}
}

func (c *callers) callerFaults() []fault {
	come, leave := fault{"the callers come", c.startCallers}, fault{"the callers go", c.finishCallers}
	kill, cut := fault{"some dispatcher run are killed", c.killSomeCallers}, fault{"some callers are cut off for longer than a lease", c.cutOff}
	wipe := fault{"Redis is wiped", func(ctx context.Context) error {
		client := redis.NewClient(&redis.Options{Addr: c.redis.Addr})
		defer func() { _ = client.Close() }()
		return client.FlushAll(ctx).Err()
	}}
	replica := fault{"a replica is killed", func(context.Context) error { c.replicas[1].restart(c.t); return nil }}
	if c.mix.faultCount == 0 {
		return []fault{come, kill, wipe, cut, replica, kill, cut, wipe, kill, leave}
	}
	all := []fault{come}
	for i := range c.mix.faultCount {
		one := c.replicas[i%len(c.replicas)]
		cycle := []fault{
			kill,
			{"a replica is killed", func(context.Context) error { one.restart(c.t); return nil }},
			wipe,
			{"a replica is stopped", pauseFault(one.Process, 2*c.margin())},
			kill,
			{"Redis is stopped", pauseFault(c.redis.Process, 2*c.margin())},
			{"the connections to Postgres are killed", c.dropConnections},
		}
		if all = append(all, cycle[i%len(cycle)]); i%30 == 15 {
			all[len(all)-1] = cut
		}
	}
	return append(all, leave)
}

// dropConnections cuts all connections to Postgres once.
func (c *callers) dropConnections(ctx context.Context) error {
	_, err := c.db.ExecContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`)
	return err
}

func (c *callers) setMaxCallerSlots(ctx context.Context, operator *simulator.Operator) error {
	if c.mix.maxCallerSlots == 0 {
		return nil
	}
	_, err := operator.Pools.Change(ctx, pool, operators.PoolPatch{Callers: operators.Set(c.mix.maxCallerSlots)})
	return err
}

// recordPeak records the highest number of grants that are in force at once, until ctx ends.
func (c *callers) recordPeak(ctx context.Context) {
	_ = poll(ctx, ledgerPause, func() bool {
		var now [2]int
		if err := c.db.QueryRowContext(ctx, `SELECT count(*), count(*) FILTER (WHERE device LIKE '@%') FROM grants WHERE pool = $1`, pool).Scan(&now[0], &now[1]); err == nil {
			c.mu.Lock()
			c.peakGrants[0], c.peakGrants[1] = max(c.peakGrants[0], now[0]), max(c.peakGrants[1], now[1])
			c.mu.Unlock()
		}
		return false
	})
}

// startCallers creates a token for the callers, and starts them.
func (c *callers) startCallers(ctx context.Context) error {
	operator, err := simulator.NewOperator(c.fleet.URL, adminToken)
	if err != nil {
		return err
	}
	if err := c.setMaxCallerSlots(ctx, operator); err != nil {
		return err
	}
	made, err := operator.Tokens.Create(ctx, operators.NewToken{Name: "callers", Role: "caller", Pools: []string{pool}})
	if err != nil {
		return err
	}
	c.token = made.Secret
	c.proxy = servers.NewProxy(c.t, c.fleet.URL[len("http://"):])
	if err := c.collectOutput(); err != nil {
		return err
	}
	ctx, c.end = context.WithCancel(context.WithoutCancel(ctx))
	c.t.Cleanup(c.stopCallers)
	c.loops.Go(func() { c.recordPeak(ctx) })
	for i := range c.mix.callers {
		one := &caller{callers: c, dice: newDice(i), url: c.fleet.URL, name: fmt.Sprint("near-", i), leaseLength: c.leaseLengths()[i/2%3]}
		if i < c.mix.cutOffCallers {
			one.url, one.name, one.isCutOff = "http://"+c.proxy.Addr, fmt.Sprint("cut-", i), true
		}
		kind, use := programPrefix, one.runProgram
		if i%2 == 0 {
			kind, use = commandPrefix, one.runCommand
		}
		c.loops.Go(func() {
			for ctx.Err() == nil {
				one.leaseNumber++
				how, err := use(ctx)
				c.countEnding(kind+how, err)
			}
		})
	}
	return c.waitForHolders(ctx, "near-", "cut-")
}

// leaseLengths returns the lengths of the callers' leases. A program leaves the length out of its request if it is the length of the pool's
// own leases.
func (c *callers) leaseLengths() [3]time.Duration {
	return [...]time.Duration{maxCallerLease, c.fleet.Lease, maxCallerLease * 6 / 10}
}

// countEnding counts one end of a lease. ending combines the kind of the holder and the way in which the lease
// ended.
func (c *callers) countEnding(ending string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endingCounts[ending]++
	if err != nil {
		c.errs = append(c.errs, err)
	}
}

func (c *callers) endingCount(ending string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endingCounts[ending]
}

// findHolders returns the names of the callers that hold slots. The names begin with prefix.
func (c *callers) findHolders(ctx context.Context, prefix string) (holders []string, err error) {
	rows, err := c.db.QueryContext(ctx, `SELECT substr(device, length('@callers/') + 1) FROM grants WHERE device LIKE '@callers/' || $1 || '%' AND lease_until > now()`, prefix)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var holder string
		if err := rows.Scan(&holder); err != nil {
			return nil, err
		}
		holders = append(holders, holder)
	}
	return holders, rows.Err()
}

// waitForHolders waits, for each prefix, until two callers whose names have this prefix hold slots: one that runs `dispatcher run`, and one
// program.
func (c *callers) waitForHolders(ctx context.Context, namePrefixes ...string) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	for _, prefix := range namePrefixes {
		for _, kind := range []string{commandPrefix, programPrefix} {
			if err := poll(ctx, ledgerPause, func() bool {
				holders, err := c.findHolders(ctx, kind+prefix)
				return err == nil && len(holders) > 0
			}); err != nil {
				return fmt.Errorf("%w: no %s%s got a slot: %w", errTestedTooLittle, kind, prefix, err)
			}
		}
	}
	return nil
}

// killSomeCallers kills every second `dispatcher run` that holds a slot and whose name begins with "near-", until one lease has ended in this
// way. In the long suite, it also kills every second one that waits. The positions of the killed programs in the queue last for another
// minute.
func (c *callers) killSomeCallers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	before := c.endingCount(commandPrefix + runKilled)
	return poll(ctx, metricsPause, func() bool {
		if c.endingCount(commandPrefix+runKilled) > before {
			return true
		}
		if holders, err := c.findHolders(ctx, commandPrefix+"near-"); err == nil {
			c.killRuns(holders)
		}
		return false
	})
}

func (c *callers) killRuns(holders []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count := map[bool]int{}
	for holder, p := range c.processes {
		holds := slices.ContainsFunc(holders, func(named string) bool { return strings.HasPrefix(named, holder+"-") })
		if !strings.HasPrefix(holder, commandPrefix+"near-") || !holds && testing.Short() {
			continue
		}
		if count[holds]++; count[holds]%2 == 1 {
			_ = p.Kill()
		}
	}
	c.t.Logf("killed half of %d that held slots, and of %d that waited", count[true], count[false])
}

// cutOff interrupts the connections of the callers that use the proxy. It waits until all their leases have ended
// and their slots were taken back. Then it allows connections again.
func (c *callers) cutOff(ctx context.Context) error {
	if err := c.waitForHolders(ctx, "cut-"); err != nil {
		return err
	}
	c.proxy.Cut()
	defer c.proxy.EndCut()
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	return errors.Join(poll(ctx, ledgerPause, func() bool {
		commands, err1 := c.findHolders(ctx, commandPrefix+"cut-")
		programs, err2 := c.findHolders(ctx, programPrefix+"cut-")
		return err1 == nil && err2 == nil && len(commands)+len(programs) == 0
	}), pause(ctx, maxCallerLease/2)) // time in which their slots are granted again
}

// finishCallers ends the callers. It reports leases and processes that are left.
func (c *callers) finishCallers(ctx context.Context) error {
	c.stopCallers()
	for _, err := range c.errs {
		c.addViolation("a caller: %w", err)
	}
	c.t.Logf("leases of callers: %v; at most %d grants in force at once, %d of them of callers", c.endingCounts, c.peakGrants[0], c.peakGrants[1])
	if c.mix.maxCallerSlots > 0 && c.peakGrants[1] > c.mix.maxCallerSlots {
		c.addViolation("callers held %d slots at once, and may hold %d", c.peakGrants[1], c.mix.maxCallerSlots)
	}
	for _, how := range []string{commandPrefix + workDone, commandPrefix + leaseLost, commandPrefix + runKilled, programPrefix + workDone, programPrefix + leaseLost} {
		if c.endingCount(how) == 0 {
			c.addDoubt("%w: no %s among the leases of callers", errTestedTooLittle, how)
		}
	}
	return c.expectNoCallersLeft(ctx)
}

// stopCallers ends the callers, and waits until no process is left.
func (c *callers) stopCallers() {
	c.end()
	c.loops.Wait()
	_ = c.childStderr.Close()
	select {
	case <-c.stderrClosed:
	case <-time.After(maxCallerLease):
		c.countEnding(neverGranted, errors.New("a process is left"))
	}
}

// expectNoCallersLeft waits until no caller holds a slot or waits for one. A caller that was killed may hold a slot until its lease ends, or
// wait until its position ends.
func (c *callers) expectNoCallersLeft(ctx context.Context) error {
	var left string
	limit := maxCallerLease + c.reapEvery + 2*time.Second
	if !testing.Short() {
		limit += 2 * time.Minute // a position lasts a minute; a request that broke off with a killed replica may add another one
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := poll(ctx, ledgerPause, func() bool {
		return c.db.QueryRowContext(ctx, `
			SELECT coalesce(string_agg(t.device || CASE WHEN g.task IS NULL THEN ' waits' ELSE ' holds a slot' END, ', '), '')
			FROM tasks t LEFT JOIN grants g ON g.task = t.id WHERE t.device LIKE '@%' AND t.state = 'pending'`).Scan(&left) == nil && left == ""
	})
	if err != nil {
		c.addViolation("the callers have gone, but: %s", left)
	}
	return nil
}
