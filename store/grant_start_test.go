package store_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

const policiesJSON = `[{"name":"n","per":"pool","algorithm":"fixed","per_ms":1000,"max":1}]`

// TestCandidatesHaveTheirPolicies checks the candidates in the view of a device (the tasks that may be granted to it). If policies apply to
// a candidate, it has the policies, the kind and the payload. Otherwise it has none of them.
func TestCandidatesHaveTheirPolicies(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 2)
		b, _ := l.queueBatch(store.Batch{Pool: "p", Kind: "speedtest", Payload: json.RawMessage(`{"a":1}`)}, "d")
		candidate := func() store.Candidate {
			views, err := l.DeviceViews(l.Context(), []string{"d"})
			l.must(err)
			return views[0].Candidates[0]
		}
		if c := candidate(); c.PoolLimits != nil || c.Limits != nil || c.Kind != "" || c.Payload != nil {
			l.Errorf("without policies: %+v", c)
		}
		_, _, err := l.PutProfile(l.Context(), "op", store.Profile{Name: "slow", Limits: json.RawMessage(policiesJSON)})
		l.must(err)
		_, err = l.CreateDevice(l.Context(), "op", "d", store.DeviceSpec{Profile: "slow"}, []byte("d"), nil)
		l.must(err)
		if c := candidate(); string(c.ProfileLimits) != policiesJSON || c.Limits != nil || c.Kind != "speedtest" || string(c.Payload) != `{"a":1}` {
			l.Errorf("with the profile's: %+v", c)
		}
		_, err = l.ChangeDevice(l.Context(), "op", "d", func(d *store.DeviceSpec) error { d.Profile = ""; return nil })
		l.must(err)
		if c := candidate(); c.ProfileLimits != nil || c.Kind != "" {
			l.Errorf("without the profile: %+v", c)
		}
		_, err = l.ChangeBatch(l.Context(), "op", b.ID, func(b *store.Batch) error { b.Limits = json.RawMessage(policiesJSON); return nil })
		l.must(err)
		if c := candidate(); c.PoolLimits != nil || string(c.Limits) != policiesJSON || c.Kind != "speedtest" || string(c.Payload) != `{"a":1}` {
			l.Errorf("with the batch's: %+v", c)
		}
		_, err = l.ChangePool(l.Context(), "op", "p", "", func(p *store.PoolSpec) error { p.Limits = json.RawMessage(policiesJSON); return nil })
		l.must(err)
		if c := candidate(); string(c.PoolLimits) != policiesJSON {
			l.Errorf("with the pool's: %+v", c)
		}
		views, err := l.DeviceViews(l.Context(), []string{"nobody", "d", "d"})
		l.must(err)
		if diff := cmp.Diff(views[1], views[2]); diff != "" || len(views[2].Candidates) != 1 || len(views[0].Candidates) != 0 {
			l.Errorf("named twice: %+v %s", views, diff)
		}
		limited, err := l.PolicyOwners(l.Context())
		l.must(err)
		want := []store.PolicyOwner{{Pool: "p", Limits: json.RawMessage(policiesJSON)}, {Pool: "p", Batch: b.ID, Limits: json.RawMessage(policiesJSON)}}
		if diff := cmp.Diff(want, limited); diff != "" {
			l.Error(diff)
		}
	})
}

// TestStarts checks that Starts returns each grant and each attempt of a pool once, newest first and in pages. StartByLease must find a
// start by the id of its lease.
func TestStarts(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 9)
		l.putPool("other", 9)
		_, tasks := l.queueBatch(store.Batch{Pool: "p", Kind: "k", Payload: json.RawMessage(`{"a":1}`)}, "d-0", "d-1", "d-2", "d-3")
		_, elsewhere := l.queueBatch(store.Batch{Pool: "other"}, "d-4")
		l.mustGrant(elsewhere[0], "d-4", "other", 0)
		var grants []store.Grant
		for i, task := range tasks {
			grants = append(grants, l.mustGrant(task, deviceName(i), "p", i))
		}
		l.recordResult(grants[0], store.BySuccess, "")
		l.recordResult(grants[2], store.ByFailure, "")
		var leases []string
		for before := int64(0); ; {
			page, err := l.Starts(l.Context(), "p", before, 3)
			l.must(err)
			if len(page) == 0 {
				break
			}
			for _, s := range page {
				if s.Kind != "k" || string(s.Payload) != `{"a":1}` || s.Now.Before(s.GrantedAt) || s.Pool != "p" {
					l.Errorf("start %+v", s)
				}
				leases = append(leases, s.LeaseID)
			}
			before = page[len(page)-1].Token
		}
		want := []string{grants[3].LeaseID, grants[2].LeaseID, grants[1].LeaseID, grants[0].LeaseID}
		if diff := cmp.Diff(want, leases); diff != "" {
			l.Error(diff)
		}
		for _, g := range grants[:2] {
			if s, err := l.StartByLease(l.Context(), g.Task, g.LeaseID); err != nil || s.Token != g.Token || s.Device != g.Device {
				l.Errorf("start of %s: %+v, %v", g.LeaseID, s, err)
			}
		}
		if _, err := l.StartByLease(l.Context(), grants[0].Task, "another"); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("of a lease that never was: %v", err)
		}
	})
}

func deviceName(i int) string { return "d-" + string(rune('0'+i)) }
