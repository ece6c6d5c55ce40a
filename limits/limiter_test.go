package limits_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/fleetslots/dispatcher/limits"
)

// TestWindows: any number of windows, all of them hold; what refuses is named,
// with the time when the last of them opens.
func TestWindows(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, s *server) {
		t.Helper()
		rules := s.rules(t, perAccount(limits.Window{Max: 1, PerMS: 60_000}, limits.Window{Max: 2, PerMS: 3_600_000}))
		first := s.check(rules, "a")
		if a := s.reserve(t, first); a.Status != limits.StatusPassed {
			t.Fatalf("first: %+v", a)
		}
		s.count(t, first)
		got := s.reserve(t, s.check(rules, "a")).Last()
		if got.Window != 0 || got.Wait <= 30*time.Second || got.Wait > time.Minute || got.Pending {
			t.Errorf("second at once: %+v", got)
		}
		if !s.start(t, rules, "b") {
			t.Error("another account is refused")
		}
		// Another one, ten minutes ago.
		if err := s.Count(t.Context(), scope, []limits.Check{s.check(rules, "a")}, 10*time.Minute); err != nil {
			t.Fatal(err)
		}
		got = s.reserve(t, s.check(rules, "a")).Last()
		if got.Window != 1 || got.Wait <= 49*time.Minute || got.Wait > 50*time.Minute || got.Oldest < 10*time.Minute {
			t.Errorf("with two in the hour: %+v", got)
		}
	})
}

// TestAllOrNothing: what one rule refuses costs nothing with the others.
func TestAllOrNothing(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, s *server) {
		t.Helper()
		rules := s.rules(t,
			limits.Policy{Name: "starts", Per: "pool", Algorithm: limits.Fixed, PerMS: 3_600_000, Max: 3},
			perAccount(limits.Window{Max: 1, PerMS: 3_600_000}),
		)
		for i := range 5 {
			if got := s.start(t, rules, "a"); got != (i == 0) {
				t.Errorf("start %d of a: %t", i, got)
			}
		}
		for i, account := range []string{"b", "c", "d"} {
			if got := s.start(t, rules, account); got != (i < 2) {
				t.Errorf("start of %s: %t", account, got)
			}
		}
	})
}

// TestReservation: it counts as used until it is settled, and once only; what is
// kept shut by one alone says so; alternatives do not exclude one another.
func TestReservation(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, s *server) {
		t.Helper()
		for _, p := range []limits.Policy{
			perAccount(limits.Window{Max: 1, PerMS: 3_600_000}),
			{Name: "f", Per: "tags.account", Algorithm: limits.Fixed, PerMS: 3_600_000, Max: 1},
			{Name: "c", Per: "tags.account", Algorithm: limits.Calendar, Period: limits.Month, Max: 1},
			{Name: "d", Per: "tags.account", Algorithm: limits.Duplicate, PerMS: 3_600_000, Max: 1},
		} {
			rules := s.rules(t, p)
			one, other := s.check(rules, "a"), s.check(rules, "a")
			twin := one
			twin.Lease += "x"
			for range 2 {
				if s.reserve(t, one).Status != limits.StatusPassed {
					t.Fatalf("%s: a reservation, or the same sent again, is refused", p.Name)
				}
			}
			if a := s.reserve(t, twin); a.Status != limits.StatusPassed {
				t.Errorf("%s: an alternative is refused: %+v", p.Name, a)
			}
			if a := s.reserve(t, other); a.Status != limits.StatusLimited || !a.Last().Pending {
				t.Errorf("%s: beside a reservation: %+v", p.Name, a)
			}
			s.release(t, one)
			s.release(t, one)
			s.release(t, twin)
			if a := s.reserve(t, other); a.Status != limits.StatusPassed {
				t.Fatalf("%s: after a release: %+v", p.Name, a)
			}
			for range 3 {
				s.count(t, other)
			}
			if a := s.reserve(t, other); a.Status != limits.StatusPassed {
				t.Errorf("%s: a reservation that came late, after its count: %+v", p.Name, a)
			}
			if a := s.reserve(t, one); a.Status != limits.StatusLimited || a.Last().Pending {
				t.Errorf("%s: beside a count: %+v", p.Name, a)
			}
		}
	})
}

// TestReservationAfterItsCount: what the network delivers late, when it was counted
// already, passes and reserves nothing, also where there is room for more.
func TestReservationAfterItsCount(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, s *server) {
		t.Helper()
		for _, windows := range [][]limits.Window{{{Max: 3, PerMS: 3_600_000}}, {{Max: 3, PerMS: 3_600_000}, {Max: 9, PerMS: 7_200_000}}} {
			rules := s.rules(t, perAccount(windows...))
			c := s.check(rules, "a")
			for step, act := range []func(testing.TB, limits.Check){s.mustReserve, s.count, s.mustReserve, s.mustReserve} {
				act(t, c)
				if open := s.client.ZCard(t.Context(), "limits:{pool}:open").Val(); (open == 1) != (step == 0) {
					t.Errorf("step %d: %d are open", step, open)
				}
			}
		}
	})
}

// TestMaxOneOfManyAtOnce: two replicas never both pass.
func TestMaxOneOfManyAtOnce(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, s *server) {
		t.Helper()
		rules := s.rules(t, perAccount(limits.Window{Max: 1, PerMS: 3_600_000}))
		replicas := []*limits.Limiter{s.Limiter, limits.New(s.client)}
		for round := range 20 {
			var passed atomic.Int64
			var all sync.WaitGroup
			for i := range 8 {
				c := s.check(rules, fmt.Sprintf("account %d", round))
				all.Go(func() {
					a, err := replicas[i%2].Reserve(t.Context(), scope, []limits.Check{c})
					if err != nil {
						t.Error(err)
					} else if a[0].Status == limits.StatusPassed {
						passed.Add(1)
					}
				})
			}
			all.Wait()
			if passed.Load() != 1 {
				t.Fatalf("%d passed", passed.Load())
			}
		}
	})
}

// TestUnknownUntilRebuilt: a rule is believed only once it has its history, and
// again when Redis lost everything; what starts meanwhile is not lost.
func TestUnknownUntilRebuilt(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, s *server) {
		t.Helper()
		policies := []limits.Policy{
			perAccount(limits.Window{Max: 3, PerMS: 3_600_000}),
			{Name: "list", Per: "tags.account", Algorithm: limits.Sliding, Windows: []limits.Window{{Max: 3, PerMS: 3_600_000}, {Max: 200, PerMS: 4_000_000}}},
			{Name: "fixed", Per: "tags.account", Algorithm: limits.Fixed, PerMS: 3_600_000, Max: 3},
			{Name: "calendar", Per: "tags.account", Algorithm: limits.Calendar, Period: limits.Month, Max: 3},
		}
		for _, p := range policies {
			rules, err := limits.Compile("p", []limits.Policy{p})
			if err != nil {
				t.Fatal(err)
			}
			if a := s.reserve(t, s.check(rules, "a")); a.Status != limits.StatusUnknown {
				t.Fatalf("%s: a new rule is believed: %+v", p.Name, a)
			}
			past := []limits.Start{
				{Lease: "1.1.x", Ago: time.Second, Facts: facts("a")},
				{Lease: "2.1.x", Ago: 2 * time.Second, Facts: facts("a")},
				{Lease: "3.1.x", Ago: 3 * time.Second, Facts: facts("b")},
			}
			if p.Algorithm == limits.Calendar { // the month may have begun a second ago
				for i := range past {
					past[i].Ago = 0
				}
			}
			meanwhile := func(ctx context.Context, within time.Duration) iter.Seq2[limits.Start, error] {
				return func(yield func(limits.Start, error) bool) {
					if within < time.Minute { // the second reading has one more
						past = append([]limits.Start{{Lease: "4.1.x", Facts: facts("a")}}, past...)
					} else if a := s.reserve(t, s.check(rules, "a")); a.Status != limits.StatusUnknown {
						t.Errorf("%s: believed while it is filled: %+v", p.Name, a)
					} else {
						s.count(t, limits.NewCheck("4.1.x", "x", rules, facts("a"))) // would be overwritten
					}
					history(past...)(ctx, within)(yield)
				}
			}
			if err := s.Rebuild(t.Context(), scope, rules, meanwhile); err != nil {
				t.Fatalf("%s: %v", p.Name, err)
			}
			late := limits.NewCheck("4.1.x", "x", rules, facts("a")) // whoever started it says so only now
			s.count(t, late)
			if s.start(t, rules, "a") {
				t.Errorf("%s: a fourth start", p.Name)
			}
			got := []bool{s.start(t, rules, "b"), s.start(t, rules, "b"), s.start(t, rules, "b")}
			if !slices.Equal(got, []bool{true, true, false}) {
				t.Errorf("%s: starts of b: %v", p.Name, got)
			}
			if err := s.client.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			if a := s.reserve(t, s.check(rules, "a")); a.Status != limits.StatusUnknown {
				t.Errorf("%s: believed after Redis lost all: %+v", p.Name, a)
			}
		}
	})
}

// TestLateCounts: the order in which starts are counted does not matter, only when
// they were, packed and in lists.
func TestLateCounts(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	mini.SetTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	s := serve(t, mini.Addr(), false)
	for most, kept := range map[int64]int{4: 4, 1000: 7} { // packed, a list
		rules := s.rules(t, perAccount(limits.Window{Max: most, PerMS: 3_600_000}))
		for _, ago := range []int{20, 40, 10, 30, 25, 5, 50} {
			if err := s.Count(t.Context(), scope, []limits.Check{s.check(rules, "a")}, time.Duration(ago)*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		got := s.times(t, limits.SubjectKey(scope, rules[0], rules[0].Subject(facts("a"))))
		if len(got) != kept || !slices.IsSortedFunc(got, func(a, b string) int { return strings.Compare(b, a) }) {
			t.Errorf("max %d: kept %v", most, got)
		}
	}
}

// times are those that are kept of a subject, packed or in a list, the newest first.
func (s *server) times(tb testing.TB, key string) (times []string) {
	tb.Helper()
	if s.client.Type(tb.Context(), key).Val() == "list" {
		return s.client.LRange(tb.Context(), key, 0, -1).Val()
	}
	for word := range slices.Chunk([]byte(s.client.Get(tb.Context(), key).Val()), 13) {
		times = append(times, string(word))
	}
	return times
}

// TestPeriodBeginsWithItsFirst: what started in the very millisecond in which a day
// begins belongs to it, also when it is read from the history.
func TestPeriodBeginsWithItsFirst(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	mini.SetTime(now.Add(5 * time.Minute))
	s := serve(t, mini.Addr(), false)
	rules, err := limits.Compile("p", []limits.Policy{{Name: "n", Per: "pool", Algorithm: limits.Calendar, Period: limits.Day, Max: 1}})
	if err != nil {
		t.Fatal(err)
	}
	local := limits.NewAt(s.client, func() time.Time { return now.Add(5 * time.Minute) })
	for ago, full := range map[time.Duration]bool{5 * time.Minute: true, 5*time.Minute + time.Millisecond: false} {
		mini.FlushAll()
		if err := local.Rebuild(t.Context(), scope, rules, history(limits.Start{Lease: "1.1.x", Ago: ago, Facts: facts("a")})); err != nil {
			t.Fatal(err)
		}
		if got := !s.start(t, rules, "a"); got != full {
			t.Errorf("a start %s ago: the day is full: %t", ago, got)
		}
	}
}

// TestOneFillsAtATime: another one waits, and takes over from one that is gone.
func TestOneFillsAtATime(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	mini.SetTime(now)
	s := serve(t, mini.Addr(), false)
	rules, err := limits.Compile("p", []limits.Policy{perAccount(limits.Window{Max: 1, PerMS: 1000})})
	if err != nil {
		t.Fatal(err)
	}
	gone := errors.New("the process ended")
	broken := func(context.Context, time.Duration) iter.Seq2[limits.Start, error] {
		return func(yield func(limits.Start, error) bool) { yield(limits.Start{}, gone) }
	}
	if err := s.Rebuild(t.Context(), scope, rules, broken); !errors.Is(err, gone) {
		t.Fatalf("a history that cannot be read: %v", err)
	}
	if err := s.Rebuild(t.Context(), scope, rules, history()); !errors.Is(err, limits.ErrBusy) {
		t.Errorf("beside another one: %v", err)
	}
	mini.SetTime(now.Add(10 * time.Second))
	s.know(t, rules)
	if !s.start(t, rules, "a") {
		t.Error("refused")
	}
}

// TestNobodyTakesOverFromWhoIsAtIt: filling may take far longer than it takes to be
// given up for gone.
func TestNobodyTakesOverFromWhoIsAtIt(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	mini.SetTime(now)
	s := serve(t, mini.Addr(), false)
	one, other := limits.NewAt(s.client, func() time.Time { return now }), limits.New(s.client)
	rules, err := limits.Compile("p", []limits.Policy{perAccount(limits.Window{Max: 1, PerMS: 3_600_000})})
	if err != nil {
		t.Fatal(err)
	}
	slow := func(context.Context, time.Duration) iter.Seq2[limits.Start, error] {
		return func(yield func(limits.Start, error) bool) {
			for n := range 30 {
				now = now.Add(4 * time.Second)
				mini.SetTime(now)
				mini.FastForward(4 * time.Second)
				if err := other.Rebuild(t.Context(), scope, rules, history()); !errors.Is(err, limits.ErrBusy) {
					t.Errorf("another one, after %d starts: %v", n, err)
				}
				if !yield(limits.Start{Lease: fmt.Sprintf("%d.1.x", n), Ago: time.Duration(n) * time.Second, Facts: facts("a")}, nil) {
					return
				}
			}
		}
	}
	if err := one.Rebuild(t.Context(), scope, rules, slow); err != nil {
		t.Fatal(err)
	}
	if s.start(t, rules, "a") {
		t.Error("what was read is not counted")
	}
}

// TestOverdue: what nobody settled keeps the scope shut until it is found out
// whether it started, and counts if it did.
func TestOverdue(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, s *server) {
		t.Helper()
		rules := s.rules(t, perAccount(limits.Window{Max: 1, PerMS: 3_600_000}))
		started, not := s.check(rules, "a"), s.check(rules, "b")
		s.reserve(t, started)
		s.reserve(t, not)
		s.SettlesWithin(0)
		if a := s.reserve(t, s.check(rules, "c")); a.Status != limits.StatusUnsettled {
			t.Fatalf("beside one that is overdue: %+v", a)
		}
		overdue, err := s.Overdue(t.Context(), scope)
		slices.Sort(overdue)
		if err != nil || !slices.Equal(overdue, []string{started.Lease, not.Lease}) {
			t.Fatalf("overdue: %v, %v", overdue, err)
		}
		started.Group, not.Group, not.Items = "", "", nil // found out by another process
		s.count(t, started)
		s.release(t, not)
		s.SettlesWithin(time.Minute)
		if a := s.reserve(t, s.check(rules, "a")); a.Status != limits.StatusLimited || a.Last().Pending {
			t.Errorf("what started does not count: %+v", a)
		}
		if !s.start(t, rules, "b") {
			t.Error("what did not start counts")
		}
		if n := s.client.ZCard(t.Context(), "limits:{pool}:pending").Val(); n != 0 {
			t.Errorf("%d reservations left", n)
		}
	})
}

// TestIdleLeavesNothing: no key is left of a subject that was idle for its longest
// window, and after a while none at all.
func TestIdleLeavesNothing(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	s := serve(t, mini.Addr(), false)
	rules := s.rules(t,
		perAccount(limits.Window{Max: 1, PerMS: 1000}, limits.Window{Max: 5, PerMS: 7_200_000}),
		limits.Policy{Name: "list", Per: "tags.account", Algorithm: limits.Sliding, Windows: []limits.Window{{Max: 200, PerMS: 7_200_000}}},
		limits.Policy{Name: "f", Per: "tags.account", Algorithm: limits.Fixed, PerMS: 7_200_000, Max: 1},
		limits.Policy{Name: "c", Per: "tags.account", Algorithm: limits.Calendar, Period: limits.Day, Max: 1},
	)
	if !s.start(t, rules, "a") || s.start(t, rules, "a") {
		t.Fatal("want one start and one refusal")
	}
	mini.FastForward(25 * time.Hour)
	if left := slices.DeleteFunc(s.keys(t), func(k string) bool { return !strings.Contains(k, ":s:") }); len(left) > 0 {
		t.Errorf("left of idle subjects: %v", left)
	}
	mini.FastForward(26 * time.Hour)
	if left := s.keys(t); len(left) > 0 {
		t.Errorf("left of idle rules: %v", left)
	}
}

// TestKeysEndByThemselves: every key of a real Redis has a TTL once nothing is open.
func TestKeysEndByThemselves(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, s *server) {
		t.Helper()
		rules := s.rules(t,
			perAccount(limits.Window{Max: 1, PerMS: 3_600_000}),
			limits.Policy{Name: "list", Per: "tags.account", Algorithm: limits.Sliding, Windows: []limits.Window{{Max: 200, PerMS: 3_600_000}}},
			limits.Policy{Name: "f", Per: "tags.account", Algorithm: limits.Fixed, PerMS: 3_600_000, Max: 1},
			limits.Policy{Name: "c", Per: "tags.account", Algorithm: limits.Calendar, Period: limits.Day, Max: 1},
		)
		s.start(t, rules, "a")
		s.start(t, rules, "a")
		for _, rule := range rules {
			if !s.start(t, []*limits.Rule{rule}, "started alone") {
				t.Fatal("it may not start")
			}
			if a, err := s.Take(t.Context(), scope, []limits.Check{s.check([]*limits.Rule{rule}, "taken alone")}); err != nil || a[0].Status != limits.StatusPassed {
				t.Fatalf("it may not be taken: %v, %v", a, err)
			}
		}
		for _, key := range s.keys(t) {
			if ttl := s.client.PTTL(t.Context(), key).Val(); ttl <= 0 || ttl > 50*time.Hour {
				t.Errorf("%s ends in %s", key, ttl)
			}
		}
	})
}

// TestTop: who is refused most, by policy; reservations in the way do not count.
func TestTop(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, s *server) {
		t.Helper()
		rules := s.rules(t, perAccount(limits.Window{Max: 1, PerMS: 3_600_000}))
		for i := range 3 {
			for range 5 * (i + 1) {
				s.start(t, rules, fmt.Sprintf("account %d", i))
			}
		}
		top, err := s.Top(t.Context(), scope, 2)
		want := []limits.Limited{{Policy: "per-account", Subject: "tags.account=account 2", Times: 14}, {Policy: "per-account", Subject: "tags.account=account 1", Times: 9}}
		if err != nil || !slices.Equal(top, want) {
			t.Errorf("top: %v, %v", top, err)
		}
		for i := range 300 { // more than are kept
			account := fmt.Sprintf("rare %d", i)
			s.start(t, rules, account)
			s.start(t, rules, account)
		}
		if err := s.TellRefused(t.Context()); err != nil {
			t.Fatal(err)
		}
		if top, err = limits.New(s.client).Top(t.Context(), scope, 2); err != nil || !slices.Equal(top, want) {
			t.Errorf("top of many, at another process: %v, %v", top, err)
		}
	})
}

// TestClockWentBack: a subject whose times are yet to come is not believed, rather
// than shut until they are there again.
func TestClockWentBack(t *testing.T) {
	t.Parallel()
	for _, p := range []limits.Policy{
		perAccount(limits.Window{Max: 1, PerMS: 60_000}),
		{Name: "f", Per: "tags.account", Algorithm: limits.Fixed, PerMS: 60_000, Max: 1},
		{Name: "c", Per: "tags.account", Algorithm: limits.Calendar, Period: limits.Day, Max: 1},
	} {
		mini := miniredis.RunT(t)
		now := time.Date(2026, 3, 5, 12, 0, 0, 0, time.UTC)
		mini.SetTime(now)
		s := serve(t, mini.Addr(), false)
		rules := s.rules(t, p)
		s.start(t, rules, "a")
		mini.SetTime(now.Add(-48 * time.Hour))
		if a := s.reserve(t, s.check(rules, "a")); a.Status != limits.StatusUnknown {
			t.Errorf("%s: %+v", p.Name, a)
		}
		s.know(t, rules, limits.Start{Lease: "1.1.g1", Ago: time.Second, Facts: facts("a")})
		if a := s.reserve(t, s.check(rules, "a")); a.Status != limits.StatusLimited || a.Last().Wait > 36*time.Hour {
			t.Errorf("%s: filled again: %+v", p.Name, a)
		}
	}
}

// TestUnreachable: nothing passes, and the second call does not wait.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	s := serve(t, mini.Addr(), false)
	rules := s.rules(t, perAccount(limits.Window{Max: 1, PerMS: 60_000}))
	mini.Close()
	for range 3 {
		if _, err := s.Reserve(t.Context(), scope, []limits.Check{s.check(rules, "a")}); !errors.Is(err, limits.ErrUnavailable) {
			t.Errorf("want ErrUnavailable, got %v", err)
		}
	}
}

// TestGuard: one call finds out that Redis does not answer, the others fail at once.
func TestGuard(t *testing.T) {
	t.Parallel()
	now := time.Now()
	g := limits.Guard(func() time.Time { return now })
	call := func(err error) (sent bool) {
		probe, ok := g.Enter()
		if ok {
			g.Leave(t.Context(), probe, err)
		}
		return ok
	}
	broken := errors.New("connection reset")
	if !call(nil) || !call(broken) || call(broken) {
		t.Error("want two calls sent, and the third not")
	}
	now = now.Add(time.Second)
	if !call(broken) || call(nil) {
		t.Error("want one that tries")
	}
	now = now.Add(time.Second)
	for range 2 {
		if !call(nil) {
			t.Error("want all sent again")
		}
	}
}
