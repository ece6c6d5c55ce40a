package limits_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
)

// restarted runs a test on a Redis, and on a Cluster, that can be started with older
// data.
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

// TestRolledBackRedisIsNotKnown: what Redis knows after a start with older data is
// not taken as known by any replica, not even by the first call, nor by one that is new
// itself, until it was filled again, which is once for all of them.
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
				if i > 0 { // nobody else filled them
					replicas[(first+i)%len(replicas)].reserveEach(t, rules, limits.StatusLimited)
					continue
				}
				replicas[first].reserveEach(t, rules, limits.StatusUnknown)
				replicas[first].know(t, rules, past...)
			}
			snapshot = r.Snapshot(t) // known, but only in this epoch
		}
	})
}

// TestNewReplicaDoubtsRolledBackRedis has nothing to compare with but what Redis says.
func TestNewReplicaDoubtsRolledBackRedis(t *testing.T) {
	t.Parallel()
	restarted(t, func(t *testing.T, r *servers.RedisServer, replica func() *server) {
		t.Helper()
		rules := compiled(t, hourly(2))
		replica().know(t, rules)
		snapshot := r.Snapshot(t)
		replica().reserveEach(t, rules, limits.StatusPassed) // a new one takes what is of this epoch
		r.Kill()
		r.Restore(t, snapshot)
		r.Start()
		replica().reserveEach(t, rules, limits.StatusUnknown)
	})
}

// TestRolledBackProfileIsNotBelieved: a rule that is in several scopes, in any of them.
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

// reserveEach expects an answer of each rule, and gives back what passes.
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

// TestRedisThatFollowedAnotherIsNotBelieved is the same process with the data of another one, as
// after a failover and back.
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
	must(direct.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err()) // as Sentinel does
	s.reserveEach(t, rules, limits.StatusUnknown)
	s.know(t, rules, limits.Start{Lease: "1.1.past", Facts: facts("a")})
	s.reserveEach(t, rules, limits.StatusLimited)
}
