package simulator

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/operators"
)

// TestDevicesWithTheirOwnTokens checks simulated devices over both transports. Each device uses its own token, and the server refuses the
// fleet token. A second run finds the devices registered and rotates their tokens.
func TestDevicesWithTheirOwnTokens(t *testing.T) {
	t.Parallel()
	f, server := newFake(t)
	c := testConfig(server.URL)
	c.MQTTURL, _ = serveMQTT(t, f)
	c.Via, c.Credentials, c.FleetToken, c.Tasks = ViaMixed, CredentialsOwn, "of no use", 20
	for run, rotated := range []int{0, 20, 40} {
		f.refusesRotatingImports = run == 1
		f.registrationsToRefuse = 2 // the broker behind the dispatcher may be down for a moment
		s, progress := runAgainstFake(t, f, c)
		if err := s.Err(); err != nil || s.Compared != 20 {
			t.Errorf("run %d: %v, %d outputs compared", run, err, s.Compared)
		}
		if !strings.Contains(progress, "registered 20 of 20 devices") {
			t.Errorf("run %d: no word of the registration: %q", run, progress)
		}
		if len(f.deviceTokens) != 20 || f.rotatedTokens != rotated {
			t.Errorf("run %d: %d devices, %d rotated; want 20 and %d", run, len(f.deviceTokens), f.rotatedTokens, rotated)
		}
		f.tasks, f.batchSizes = nil, nil
	}
}

func TestRegistrationThatFailsEndsTheRun(t *testing.T) {
	t.Parallel()
	_, server := newFake(t)
	c := testConfig(server.URL)
	c.Credentials, c.OperatorToken = CredentialsOwn, "wrong"
	if _, err := createAccountsAndTokens(t.Context(), newTestOperator(t, c.URL, c.OperatorToken), []string{"a", "b"}, func(int) {}); err == nil || !operators.HasStatus(err, http.StatusUnauthorized) {
		t.Errorf("%v, want status 401", err)
	}
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	nobody, tries := newTestOperator(t, "http://127.0.0.1:1", ""), 0
	nobody.http.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if tries++; tries == 2 {
			giveUp()
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	if _, err := createAccountsAndTokens(ctx, nobody, []string{"a"}, func(int) {}); !operators.IsTransient(err) || tries != 2 {
		t.Errorf("%v after %d tries, want unavailable after 2", err, tries)
	}
}

// TestDevicesGoOnAtTheOtherReplica ends one of two replicas in the middle of a run. The devices of this replica and
// the operator continue at the other replica.
func TestDevicesGoOnAtTheOtherReplica(t *testing.T) {
	t.Parallel()
	f, first := newFake(t)
	second := httptest.NewServer(f)
	t.Cleanup(second.Close)
	c := testConfig(first.URL + ", " + second.URL + "/")
	seen := make(chan struct{})
	go func() {
		defer close(seen)
		await.True(t, "the expected state of the fleet", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.lastToken > 10 })
		first.CloseClientConnections()
		first.Close()
	}()
	s, _ := runAgainstFake(t, f, c)
	<-seen
	if err := s.Err(); err != nil || s.Compared != 60 {
		t.Errorf("%v, %d outputs compared", err, s.Compared)
	}
}

func TestCallersSpreadOverReplicas(t *testing.T) {
	t.Parallel()
	count := map[string]int{}
	for i := range 10 {
		url, _ := newReplicaURLs("http://a,http://b", i).current()
		count[url]++
	}
	if count["http://a"] != 5 || count["http://b"] != 5 {
		t.Errorf("%v, want 5 each", count)
	}
	r := newReplicaURLs("http://a,http://b", 0)
	_, mark := r.current()
	r.failOver(mark)
	r.failOver(mark) // a second report that failed at the first replica must not skip the second replica
	if url, _ := r.current(); url != "http://b" {
		t.Errorf("at %s, want the other", url)
	}
}

func newTestOperator(t *testing.T, url, token string) *Operator {
	t.Helper()
	o, err := NewOperator(url, token)
	if err != nil {
		t.Fatal(err)
	}
	return o
}
