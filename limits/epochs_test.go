package limits_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// runOnRestartableRedis runs a test on a Redis server and on a Cluster that the test can restart with older data.
func runOnRestartableRedis(t *testing.T, test func(t *testing.T, r *servers.RedisServer, replica func() *redisLimiter)) {
	t.Helper()
	for name, start := range map[string]func(tb testing.TB) *servers.RedisServer{
		"redis":   func(tb testing.TB) *servers.RedisServer { tb.Helper(); return servers.StartRedis(tb) },
		"cluster": servers.StartRedisCluster,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t)
			test(t, r, func() *redisLimiter { return connect(t, servers.RedisAt{Addr: r.Addr, Cluster: name == "cluster"}) })
		})
	}
}

// TestRolledBackRedisIsNotKnown checks a Redis that was restarted with older data. No replica may trust the counts in this Redis until the
// rules are filled again. This also holds for a new replica and for the first call after the restart. After one replica has filled the
// rules, all replicas must trust them.
func TestRolledBackRedisIsNotKnown(t *testing.T) {
	t.Parallel()
	runOnRestartableRedis(t, func(t *testing.T, r *servers.RedisServer, replica func() *redisLimiter) {
		t.Helper()
		rules := compileRules(t,
			hourlyPolicy(2),
			policy.Policy{Name: "several", Per: "tags.account", Algorithm: policy.Sliding, Windows: []policy.Window{{Max: 2, PerMS: 3_600_000}, {Max: 3, PerMS: 7_200_000}}},
			policy.Policy{Name: "month", Per: "tags.account", Algorithm: policy.Calendar, Period: policy.Month, Timezone: servers.NoonZone(), Max: 2},
		)
		replicas := []*redisLimiter{replica(), replica()}
		replicas[0].rebuild(t, rules)
		for _, s := range replicas {
			s.expectReserveStatus(t, rules, limits.StatusPassed)
		}
		snapshot := r.Snapshot(t)
		var past []limits.Start
		for n := range 2 {
			past = append(past, limits.Start{Lease: fmt.Sprintf("%d.1.past", n), Facts: accountFacts("a")})
			for _, rule := range rules {
				replicas[0].countStart(t, limits.NewCheck(past[n].Lease, "g", []*limits.Rule{rule}, accountFacts("a")))
			}
		}
		replicas[1].expectReserveStatus(t, rules, limits.StatusLimited)
		for round := range 3 {
			r.Kill()
			r.Restore(t, snapshot)
			r.Start()
			replicas = append(replicas, replica())
			first := round % len(replicas)
			for i := range replicas {
				if i > 0 { // the first replica has filled the rules for all replicas
					replicas[(first+i)%len(replicas)].expectReserveStatus(t, rules, limits.StatusLimited)
					continue
				}
				replicas[first].expectReserveStatus(t, rules, limits.StatusUnknown)
				replicas[first].rebuild(t, rules, past...)
			}
			snapshot = r.Snapshot(t) // in this snapshot the rules are known, but only for this epoch
		}
	})
}

// TestNewReplicaDoubtsRolledBackRedis checks a new replica that uses a Redis which was restarted with older data. The replica has not seen
// the earlier epoch, but it must not trust rules that were filled in that epoch.
func TestNewReplicaDoubtsRolledBackRedis(t *testing.T) {
	t.Parallel()
	runOnRestartableRedis(t, func(t *testing.T, r *servers.RedisServer, replica func() *redisLimiter) {
		t.Helper()
		rules := compileRules(t, hourlyPolicy(2))
		replica().rebuild(t, rules)
		snapshot := r.Snapshot(t)
		replica().expectReserveStatus(t, rules, limits.StatusPassed) // within one epoch, a new replica trusts the rules
		r.Kill()
		r.Restore(t, snapshot)
		r.Start()
		replica().expectReserveStatus(t, rules, limits.StatusUnknown)
	})
}

// TestRolledBackProfileIsNotBelieved checks the rule of a profile after Redis was rolled back to a snapshot. The snapshot has the counts of
// the rule, but the rule must be unknown in each pool in which it is used.
func TestRolledBackProfileIsNotBelieved(t *testing.T) {
	t.Parallel()
	runOnRestartableRedis(t, func(t *testing.T, r *servers.RedisServer, replica func() *redisLimiter) {
		t.Helper()
		s, rules, scopes := replica(), compileRules(t, hourlyPolicy(2)), []string{"a", "b"}
		for _, s.scope = range scopes {
			s.rebuild(t, rules)
		}
		snapshot := r.Snapshot(t)
		r.Kill()
		r.Restore(t, snapshot)
		r.Start()
		for _, s.scope = range scopes {
			a, err := s.Reservations.Peek(t.Context(), s.scope, []limits.Check{s.newCheck(rules, "a")})
			if err != nil || a[0].Status != limits.StatusUnknown {
				t.Errorf("in %s: %+v, %v", s.scope, a, err)
			}
			s.rebuild(t, rules)
		}
	})
}

// expectReserveStatus reserves a start for each of the rules alone, checks that the status is want, and releases the reservation.
func (s *redisLimiter) expectReserveStatus(t *testing.T, rules []*limits.Rule, want limits.Status) {
	t.Helper()
	for _, rule := range rules {
		c := s.newCheck([]*limits.Rule{rule}, "a")
		if a := s.reserve(t, c); a.Status != want {
			t.Fatalf("%s: %+v, want status %d", rule.Name, a, want)
		}
		s.release(t, c)
	}
}

// TestRedisThatFollowedAnotherIsNotBelieved checks a Redis process that replaced its data with the data of another
// process, as happens in a failover and a failback. The rules in the replaced data must be unknown.
func TestRedisThatFollowedAnotherIsNotBelieved(t *testing.T) {
	t.Parallel()
	r, other := servers.StartRedis(t), servers.StartRedis(t, "--repl-diskless-sync-delay", "0")
	at := servers.RedisAt{Addr: r.Addr}
	s, rules := connect(t, at), compileRules(t, hourlyPolicy(1))
	s.rebuild(t, rules)
	snapshot := r.Snapshot(t)
	other.Kill()
	other.Restore(t, snapshot)
	other.Start()
	s.countStart(t, s.newCheck(rules, "a"))
	s.expectReserveStatus(t, rules, limits.StatusLimited)
	host, port, _ := strings.Cut(other.Addr, ":")
	direct := at.Client(t)
	must.Succeed(t, direct.SlaveOf(t.Context(), host, port).Err())
	var info string
	await.True(t, "the copy", func() bool {
		var err error
		info, err = direct.Info(t.Context(), "replication").Result()
		must.Succeed(t, err)
		return strings.Contains(info, "master_link_status:up")
	}, &info)
	must.Succeed(t, direct.SlaveOf(t.Context(), "NO", "ONE").Err())
	must.Succeed(t, direct.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err()) // Sentinel also closes these connections
	s.expectReserveStatus(t, rules, limits.StatusUnknown)
	s.rebuild(t, rules, limits.Start{Lease: "1.1.past", Facts: accountFacts("a")})
	s.expectReserveStatus(t, rules, limits.StatusLimited)
}
