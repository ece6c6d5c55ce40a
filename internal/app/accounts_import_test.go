package app

import (
	"encoding/csv"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/operators"
)

// importDevices imports the devices in these lines. It returns the tokens of the devices that got one.
func (i *instance) importDevices(t *testing.T, existing string, lines ...string) (map[devices.ID]string, error) {
	t.Helper()
	client, err := operators.New(operators.Config{URL: i.url, Token: i.admin})
	must.Succeed(t, err)
	var answer strings.Builder
	file := strings.NewReader(strings.Join(lines, "\n") + "\n")
	if err := client.Devices.Import(t.Context(), file, operators.TypeCSV, existing, operators.TypeCSV, &answer); err != nil {
		return nil, err
	}
	rows, err := csv.NewReader(strings.NewReader(answer.String())).ReadAll()
	must.Succeed(t, err)
	tokens := map[devices.ID]string{}
	for _, row := range rows[1:] {
		if row[1] != "" {
			tokens[devices.ID(row[0])] = row[1]
		}
	}
	return tokens, nil
}

// csvLines returns the CSV lines of an import of this number of devices.
func csvLines(prefix string, number int) []string {
	all := []string{"device"}
	for i := range number {
		all = append(all, fmt.Sprint(prefix, i))
	}
	return all
}

func isRefusedWith(err error, code string) bool {
	var problem *operators.Problem
	return errors.As(err, &problem) && problem.Code == code
}

// connectAll opens a session at the broker with each token, and ends it.
func (p provisionedReplicas) connectAll(t *testing.T, tokens map[devices.ID]string) {
	t.Helper()
	for id, secret := range tokens {
		f := connectDevice(t, p.broker.Addr, id, secret)
		if f.err != nil {
			t.Errorf("%s does not get in: %v", id, f.err)
		}
		f.Disconnect(0)
	}
}

// waitForNoAccounts waits until the broker has only the account of the dispatchers.
func (p provisionedReplicas) waitForNoAccounts(t *testing.T) {
	t.Helper()
	await.True(t, "no account is left behind", func() bool {
		return slices.Equal(p.broker.Accounts(t), []string{servers.DispatcherUser})
	})
}

// TestManyDevicesAreImportedAtMosquitto checks an import that creates many accounts at the broker: other requests
// to the broker are served meanwhile.
func TestManyDevicesAreImportedAtMosquitto(t *testing.T) {
	t.Parallel()
	number := 1000
	if testing.Short() {
		number = 300
	}
	p := startProvisioned(t)
	var meanwhile sync.WaitGroup
	done := make(chan struct{})
	meanwhile.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			began := time.Now()
			replica := []*instance{p.instance, p.other}[i%2]
			f := connectDevice(t, p.broker.Addr, "meanwhile", tokenIn(t, replica.callOperator(t, http.MethodPost, "/v1/devices", `{"id":"meanwhile"}`)))
			if f.err != nil {
				t.Error(f.err)
			}
			replica.callOperator(t, http.MethodDelete, "/v1/devices/meanwhile", "")
			f.expectEnd(t)
			if took := time.Since(began); i%10 == 0 {
				t.Logf("created, connected and deleted meanwhile: %s", took)
			}
		}
	})
	began := time.Now()
	tokens, err := p.importDevices(t, "", csvLines("d-", number)...)
	took := time.Since(began)
	close(done)
	meanwhile.Wait()
	if err != nil || len(tokens) != number {
		t.Fatalf("%d tokens, %v", len(tokens), err)
	}
	t.Logf("%d devices were imported in %s", number, took)
	p.connectAll(t, tokens)
	f := connectDevice(t, p.broker.Addr, "d-7", tokens["d-7"])
	f.reportUntilReply(t)
	if _, err := p.importDevices(t, "rotate", csvLines("d-", 2)...); !isRefusedWith(err, "one_by_one") {
		t.Errorf("rotated together: %v", err)
	}
	f.reportUntilReply(t) // the session of this device continues
	if tokens, err = p.importDevices(t, "skip", csvLines("d-", number+1)...); err != nil || len(tokens) != 1 {
		t.Errorf("one more: %d, %v", len(tokens), err)
	}
	p.connectAll(t, tokens)
}

func TestAnImportThatFailsLeavesNoAccounts(t *testing.T) {
	t.Parallel()
	p := startProvisioned(t)
	p.broker.Kill()
	if _, err := p.importDevices(t, "", csvLines("d-", 100)...); !isRefusedWith(err, "broker_unavailable") {
		t.Errorf("imported without the broker: %v", err)
	}
	p.broker.Start()
	p.waitForNoAccounts(t)
	bad := csvLines("d-", 100)
	for i := range bad {
		bad[i] += []string{",:profile", ","}[min(i, 1)]
	}
	bad[100] += "unknown"
	if _, err := p.importDevices(t, "", bad...); !isRefusedWith(err, "unknown_profile") && !isRefusedWith(err, "invalid_line") {
		t.Errorf("imported with an unknown profile: %v", err)
	}
	p.waitForNoAccounts(t)
	failed := make(chan error)
	go func() {
		_, err := p.importDevices(t, "", csvLines("d-", 300)...)
		failed <- err
	}()
	await.True(t, "some accounts are made", func() bool { return len(p.broker.Accounts(t)) > 20 })
	p.broker.WhilePaused(func() {
		if err := <-failed; !isRefusedWith(err, "broker_unavailable") {
			t.Errorf("imported though the broker hangs: %v", err)
		}
	})
	if status, _ := p.call(t, http.MethodGet, "/v1/devices/d-0", p.admin, ""); status != http.StatusNotFound {
		t.Errorf("half of it was imported: %d", status)
	}
	p.waitForNoAccounts(t)
	tokens, err := p.importDevices(t, "", csvLines("d-", 100)...)
	if err != nil || len(tokens) != 100 {
		t.Errorf("the same again: %d, %v", len(tokens), err)
	}
	p.connectAll(t, tokens)
}

// TestReplicasImportAtOnce checks replicas that import the same devices at the same time: every device that got a
// token can connect with it.
func TestReplicasImportAtOnce(t *testing.T) {
	t.Parallel()
	p := startProvisioned(t)
	for round := range 3 {
		prefix := fmt.Sprint("r", round, "-")
		var mu sync.Mutex
		all := map[devices.ID]string{}
		var wait sync.WaitGroup
		take := func(tokens map[devices.ID]string, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil && !isRefusedWith(err, "broker_unavailable") {
				t.Error(err)
			}
			for id, secret := range tokens {
				if all[id] != "" {
					t.Errorf("%s was given two tokens", id)
				}
				all[id] = secret
			}
		}
		for _, replica := range []*instance{p.instance, p.other, p.instance} {
			wait.Go(func() { take(replica.importDevices(t, "skip", csvLines(prefix, 60)...)) })
		}
		wait.Wait()
		take(p.importDevices(t, "skip", csvLines(prefix, 60)...)) // the lines that were refused before
		if len(all) != 60 {
			t.Errorf("%d of 60 devices have a token", len(all))
		}
		p.connectAll(t, all)
	}
}
