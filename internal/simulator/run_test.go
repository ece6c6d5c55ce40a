package simulator

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/await"
)

func testConfig(url string) Config {
	return Config{
		URL: url, OperatorToken: testOperatorToken, FleetToken: testFleetToken,
		Devices: 20, Capacity: 4, Tasks: 60, Work: 20 * time.Millisecond,
		Period: 50 * time.Millisecond, ResendAfter: time.Minute, FirstRetry: 5 * time.Millisecond,
		Seed: 1, Timeout: 5 * time.Minute,
	}
}

// runAgainstFake runs a simulation against a fake dispatcher. It returns the summary and the printed text.
func runAgainstFake(t *testing.T, f *fakeDispatcher, c Config) (Summary, string) {
	t.Helper()
	var progress bytes.Buffer
	s, err := Run(t.Context(), c, &progress)
	if err != nil {
		t.Fatalf("Run: %v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.badAuth > 0 {
		t.Errorf("%d requests with a wrong token", f.badAuth)
	}
	return s, progress.String()
}

func TestAnHonestDispatcherPasses(t *testing.T) {
	t.Parallel()
	f, server := newFake(t)
	c := testConfig(server.URL)
	s, progress := runAgainstFake(t, f, c)
	if err := s.Err(); err != nil {
		t.Fatalf("Err: %v", err)
	}
	if s.Ended != 60 || s.Compared != 60 || s.Fleet.Recorded != 60 || s.External.Arrivals != 60 {
		t.Errorf("ended %d, compared %d, recorded %d, arrivals %d; want 60 each",
			s.Ended, s.Compared, s.Fleet.Recorded, s.External.Arrivals)
	}
	if s.External.HighWater != 4 {
		t.Errorf("high-water mark %d, want 4: the slots were never all in use", s.External.HighWater)
	}
	if use := s.SlotUse(); use <= 0 || use > 1 {
		t.Errorf("slot use %v, want within 0..1", use)
	}
	if s.Makespan < s.Bound || s.Bound <= 0 {
		t.Errorf("makespan %s, bound %s", s.Makespan, s.Bound)
	}
	if !strings.Contains(progress, "held ") {
		t.Errorf("no progress line in %q", progress)
	}
	var out bytes.Buffer
	if err := s.Print(&out); err != nil || !strings.Contains(out.String(), "high-water mark 4 of 4") {
		t.Errorf("Print: %v\n%s", err, out.String())
	}
}

func TestQueueIsFilledUntil(t *testing.T) {
	t.Parallel()
	f, server := newFake(t)
	c := testConfig(server.URL)
	until := make(chan struct{})
	c.Tasks, c.FillUntil = 10, until
	go func() {
		defer close(until)
		for tick := time.NewTicker(5 * time.Millisecond); t.Context().Err() == nil; <-tick.C {
			f.mu.Lock()
			batches := len(f.batchSizes)
			f.mu.Unlock()
			if batches >= 3 {
				return
			}
		}
	}()
	s, _ := runAgainstFake(t, f, c)
	if err := s.Err(); err != nil {
		t.Fatalf("Err: %v", err)
	}
	if s.Tasks < 30 || s.Compared != s.Tasks || s.Makespan == 0 {
		t.Errorf("%d tasks, %d compared, makespan %s; want all of 3 batches or more", s.Tasks, s.Compared, s.Makespan)
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	f, server := newFake(t)
	f.shortenLeases()
	c := testConfig(server.URL)
	c.Devices, c.ResendAfter = 10, 200*time.Millisecond
	c.Faults = Faults{Silent: 0.15, Late: 0.8, Slow: 0.2, Reboot: 0.2, Duplicate: 0.3, LostReplies: 0.2, Garbage: 0.2}
	s, _ := runAgainstFake(t, f, c)
	if err := s.Err(); err != nil {
		t.Fatalf("Err: %v", err)
	}
	if s.Compared != 60 || s.Unacknowledged != 0 {
		t.Errorf("compared %d outputs, want 60; %d results without an outcome", s.Compared, s.Unacknowledged)
	}
	for name, n := range map[string]int64{
		"silent": s.Fleet.Silent, "reboots": s.Fleet.Reboots, "renewals": s.Fleet.Renewals,
		"leases ended": s.Fleet.LeasesEnded, "lost replies": s.Fleet.LostReplies, "redeliveries": s.Fleet.Redeliveries,
		"garbage refused": s.Fleet.GarbageRefused, "duplicates": s.Fleet.Duplicate, "late": s.Fleet.Late,
	} {
		if n == 0 {
			t.Errorf("no %s", name)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.repeatedReports == 0 || f.lapsedGrants == 0 {
		t.Errorf("server saw %d copies and %d lapses, want some", f.repeatedReports, f.lapsedGrants)
	}
}

// TestBrokenPromisesAreReported tests the checks of the simulation: for each fault of a dispatcher, the run must
// fail and name the fault.
func TestBrokenPromisesAreReported(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		do   func(*fakeDispatcher, *Config)
		want string
	}{
		// The tasks take so long that several devices use the external system at the same time, even on a busy machine.
		{"over-grants", func(f *fakeDispatcher, c *Config) { f.extraSlots, c.Work = 2, time.Second }, "capacity 4 exceeded"},
		{"shared slot", func(f *fakeDispatcher, c *Config) { f.sameSlot, c.Work = true, 300*time.Millisecond }, "at a slot in use"},
		{"stale tokens", func(f *fakeDispatcher, _ *Config) { f.staleTokens = true }, "stale token"},
		{"task never run", func(f *fakeDispatcher, _ *Config) { f.loseTask = 9 }, "1 tasks lost"},
		{"task missing", func(f *fakeDispatcher, _ *Config) { f.hideTask = 9 }, "1 tasks lost"},
		{"altered output", func(f *fakeDispatcher, _ *Config) { f.alterOutput = 9 }, "1 outputs differ"},
		{"uncommitted result", func(f *fakeDispatcher, _ *Config) { f.ackEarly, f.lease = 9, 2*time.Second }, "was redelivered after its result was acknowledged"},
		{"lost result", func(f *fakeDispatcher, _ *Config) { f.forgetResult = 9 }, "1 outputs differ"},
		{"garbage accepted", func(f *fakeDispatcher, c *Config) { f.acceptAll, c.Garbage = true, 0.5 }, "malformed reports were not refused"},
		{"running unanswered", func(f *fakeDispatcher, c *Config) {
			f.omitsRenewals, f.lease, c.Slow = true, 700*time.Millisecond, 0.5
		}, "has 0 answers"},
		{"never ends", func(_ *fakeDispatcher, c *Config) { c.Timeout, c.Tasks = 300*time.Millisecond, 2000 }, "tasks did not end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f, server := newFake(t)
			config := testConfig(server.URL)
			config.Devices, config.Tasks = 10, 20
			c.do(f, &config)
			s, _ := runAgainstFake(t, f, config)
			if err := s.Err(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Err = %v, want %q", err, c.want)
			}
		})
	}
}

func TestEndlessKeepsTheQueueFilled(t *testing.T) {
	t.Parallel()
	f, server := newFake(t)
	c := testConfig(server.URL)
	c.Endless, c.Tasks = true, 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		await.True(t, "the expected state of the fleet", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.batchSizes) >= 6 })
		cancel()
	}()
	s, err := Run(ctx, c, nil)
	if err != nil {
		t.Fatalf("Run: %v", err)
	}
	if err := s.Err(); err != nil {
		t.Errorf("Err: %v", err)
	}
	var out bytes.Buffer
	if err := s.PrintShort(&out); err != nil || !s.Interrupted || s.Compared == 0 || s.Ended < 20 || s.LongestWait <= 0 || !strings.Contains(out.String(), "longest wait of a task") {
		t.Errorf("%v: interrupted %t, compared %d, ended %d, longest wait %s\n%s", err, s.Interrupted, s.Compared, s.Ended, s.LongestWait, out.String())
	}
	out.Reset()
	if err := s.Print(&out); err != nil || strings.Contains(out.String(), "makespan") {
		t.Errorf("%v: figures that an endless run does not have:\n%s", err, out.String())
	}
}

func TestARaisedCapacityIsNotOverLimit(t *testing.T) {
	t.Parallel()
	f, server := newFake(t)
	c := testConfig(server.URL)
	c.Tasks = 200
	go func() {
		await.True(t, "the expected state of the fleet", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.lastToken > 8 })
		f.mu.Lock()
		f.pool.Capacity = 9
		f.mu.Unlock()
	}()
	s, _ := runAgainstFake(t, f, c)
	if err := s.Err(); err != nil {
		t.Fatalf("Err: %v", err)
	}
	if s.External.HighWater <= 4 {
		t.Errorf("high-water mark %d: the raised capacity was never used", s.External.HighWater)
	}
}

func TestRunRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	_, server := newFake(t)
	for _, c := range []struct {
		name string
		do   func(*Config)
		want string
	}{
		{"no URL", func(c *Config) { c.URL = "" }, "URL"},
		{"via", func(c *Config) { c.Via = "pigeon" }, "via"},
		{"no broker", func(c *Config) { c.Via = ViaMQTT }, "URL"},
		{"gone", func(c *Config) { c.Gone, c.Devices, c.Tasks = 0.1, 5, 6 }, "one task per device"},
		{"negative capacity", func(c *Config) { c.Capacity = -1 }, "negative"},
		{"token", func(c *Config) { c.OperatorToken = "x" }, "unauthorized"},
		{"fleet token", func(c *Config) { c.FleetToken = "x" }, "DISPATCHER_FLEET_TOKEN"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			config := testConfig(server.URL)
			c.do(&config)
			if _, err := Run(t.Context(), config, nil); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Run = %v, want %q", err, c.want)
			}
		})
	}
}

// TestRunWaitsForTheLastOutcomes loses the replies to the last results. The run must wait until the devices have
// sent their results again.
func TestRunWaitsForTheLastOutcomes(t *testing.T) {
	t.Parallel()
	f, server := newFake(t)
	c := testConfig(server.URL)
	c.Devices, c.Tasks, c.ResendAfter = 12, 12, 100*time.Millisecond
	c.LostReplies = 0.5
	s, _ := runAgainstFake(t, f, c)
	if err := s.Err(); err != nil || s.Unacknowledged != 0 {
		t.Errorf("Err %v, %d results without an outcome", err, s.Unacknowledged)
	}
	if s.Fleet.Duplicate == 0 {
		t.Error("no result was sent again")
	}
}
