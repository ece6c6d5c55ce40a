package limits_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
)

// restarted runs a test on a Redis and on a Cluster that can be restarted with older data.
func restarted(t *testing.T, test func(t *testing.T, r *servers.RedisServer, replica func() *server)) {
	t.Helper()
	for name, start := range map[string]func(tb testing.TB) *servers.RedisServer{
		"redis":   func(tb testing.TB) *servers.RedisServer { tb.Helper(); return servers.Redis(tb) },
		"cluster": servers.RedisCluster,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t)
			test(t, r, func() *server { return serve(t, servers.RedisAt{Addr: r.Addr, Cluster: name == "cluster"}) })
		})
	}
}

// TestRolledBackRedisIsNotKnown checks a Redis that was restarted with older data. No replica, not
// even a new one, takes its rules as known, also not in the first call, until the rules are filled
// again. One filling is enough for all replicas.
func TestRolledBackRedisIsNotKnown(t *testing.T) {
	t.Parallel()
	restarted(t, func(t *testing.T, r *servers.RedisServer, replica func() *server) {
		t.Helper()
		rules := compiled(t,
			hourly(2),
			limits.Policy{Name: "several", Per: "tags.account", Algorithm: limits.Sliding, Windows: []limits.Window{{Max: 2, PerMS: 3_600_000}, {Max: 3, PerMS: 7_200_000}}},
			limits.Policy{Name: "month", Per: "tags.account", Algorithm: limits.Calendar, Period: limits.Month, Timezone: servers.NoonZone(), Max: 2},
		)
		replicas := []*server{replica(), replica()}
		replicas[0].know(t, rules)
		for _, s := range replicas {
			s.reserveEach(t, rules, limits.StatusPassed)
		}
		snapshot := r.Snapshot(t)
		var past []limits.Start
		for n := range 2 {
			past = append(past, limits.Start{Lease: fmt.Sprintf("%d.1.past", n), Facts: facts("a")})
			for _, rule := range rules {
				replicas[0].count(t, limits.NewCheck(past[n].Lease, "g", []*limits.Rule{rule}, facts("a")))
			}
		}
		replicas[1].reserveEach(t, rules, limits.StatusLimited)
		for round := range 3 {
			r.Kill()
			r.Restore(t, snapshot)
			r.Start()
			replicas = append(replicas, replica())
			first := round % len(replicas)
			for i := range replicas {
				if i > 0 { // the first replica has filled the rules for all replicas
					replicas[(first+i)%len(replicas)].reserveEach(t, rules, limits.StatusLimited)
					continue
				}
				replicas[first].reserveEach(t, rules, limits.StatusUnknown)
				replicas[first].know(t, rules, past...)
			}
			snapshot = r.Snapshot(t) // in this snapshot the rules are known, but only for this epoch
		}
	})
}

// TestNewReplicaDoubtsRolledBackRedis checks that a new replica, which has observed no earlier
// epoch, does not take the rules of an earlier epoch as known.
func TestNewReplicaDoubtsRolledBackRedis(t *testing.T) {
	t.Parallel()
	restarted(t, func(t *testing.T, r *servers.RedisServer, replica func() *server) {
		t.Helper()
		rules := compiled(t, hourly(2))
		replica().know(t, rules)
		snapshot := r.Snapshot(t)
		replica().reserveEach(t, rules, limits.StatusPassed) // in the same epoch a new replica takes the rules as known
		r.Kill()
		r.Restore(t, snapshot)
		r.Start()
		replica().reserveEach(t, rules, limits.StatusUnknown)
	})
}

// TestRolledBackProfileIsNotBelieved checks that a rule of an earlier epoch is unknown in each of
// its scopes.
func TestRolledBackProfileIsNotBelieved(t *testing.T) {
	t.Parallel()
	restarted(t, func(t *testing.T, r *servers.RedisServer, replica func() *server) {
		t.Helper()
		s, rules, scopes := replica(), compiled(t, hourly(2)), []string{"a", "b"}
		for _, s.scope = range scopes {
			s.know(t, rules)
		}
		snapshot := r.Snapshot(t)
		r.Kill()
		r.Restore(t, snapshot)
		r.Start()
		for _, s.scope = range scopes {
			a, err := s.Reservations.Look(t.Context(), s.scope, []limits.Check{s.check(rules, "a")})
			if err != nil || a[0].Status != limits.StatusUnknown {
				t.Errorf("in %s: %+v, %v", s.scope, a, err)
			}
			s.know(t, rules)
		}
	})
}

// reserveEach checks the status of a reservation by each rule, and releases the reservation.
func (s *server) reserveEach(t *testing.T, rules []*limits.Rule, want limits.Status) {
	t.Helper()
	for _, rule := range rules {
		c := s.check([]*limits.Rule{rule}, "a")
		if a := s.reserve(t, c); a.Status != want {
			t.Fatalf("%s: %+v, want status %d", rule.Name, a, want)
		}
		s.release(t, c)
	}
}

// TestRedisThatFollowedAnotherIsNotBelieved checks a Redis process that has replaced its data with
// the data of another process, as after a failover and a failback.
func TestRedisThatFollowedAnotherIsNotBelieved(t *testing.T) {
	t.Parallel()
	r, other := servers.Redis(t), servers.Redis(t, "--repl-diskless-sync-delay", "0")
	at := servers.RedisAt{Addr: r.Addr}
	s, rules := serve(t, at), compiled(t, hourly(1))
	s.know(t, rules)
	snapshot := r.Snapshot(t)
	other.Kill()
	other.Restore(t, snapshot)
	other.Start()
	s.count(t, s.check(rules, "a"))
	s.reserveEach(t, rules, limits.StatusLimited)
	host, port, _ := strings.Cut(other.Addr, ":")
	direct := at.Client(t)
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(direct.SlaveOf(t.Context(), host, port).Err())
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		info, err := direct.Info(t.Context(), "replication").Result()
		must(err)
		if strings.Contains(info, "master_link_status:up") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it does not follow: %s", info)
		}
	}
	must(direct.SlaveOf(t.Context(), "NO", "ONE").Err())
	must(direct.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err()) // Sentinel does the same
	s.reserveEach(t, rules, limits.StatusUnknown)
	s.know(t, rules, limits.Start{Lease: "1.1.past", Facts: facts("a")})
	s.reserveEach(t, rules, limits.StatusLimited)
}
