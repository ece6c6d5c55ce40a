package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/slots"
)

// maxClaimDelay is longer than a replica may take between acquiring a slot in Redis and claiming it in the ledger.
// A lease in Redis that is older than this must have a grant in the ledger. Otherwise it is an orphan.
const maxClaimDelay = 4 * time.Second

// waitUntilRecovered waits until each replica has granted a task over MQTT, and any replica over HTTP (HTTP clients
// stay connected to one replica). Then it waits until the pool is nearly full.
func (x *experiment) waitUntilRecovered(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	silent, err := x.waitForGrants(ctx)
	if err != nil {
		return fmt.Errorf("no grant by %q: %w", silent, err)
	}
	var held int
	if err := poll(ctx, ledgerPause, func() bool {
		if now, err := x.heldCount(ctx); err == nil {
			held = now
		}
		return held >= x.wantHeld()
	}); err != nil {
		return fmt.Errorf("%d slots held, want %d: %w", held, x.wantHeld(), err)
	}
	return nil
}

// recovery has the times that a deployment needed to recover from a fault, counted from the moment at which the
// failed part answered again.
type recovery struct{ firstGrant, nearlyFull time.Duration }

func (r recovery) String() string {
	return fmt.Sprintf("first grant after %.1f s, 90 %% of the slots held after %.1f s", r.firstGrant.Seconds(), r.nearlyFull.Seconds())
}

// measureRecovery waits for the first grant, and then until 90 % of the slots are held. It reads both from the
// ledger.
func (x *experiment) measureRecovery(ctx context.Context) (r recovery, err error) {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	began := time.Now()
	var since int64
	if err := poll(ctx, ledgerPause, func() bool {
		return x.db.QueryRowContext(ctx, `SELECT last_value FROM grant_token`).Scan(&since) == nil
	}); err != nil {
		return r, err
	}
	err = poll(ctx, ledgerPause, func() bool {
		var now int64
		return x.db.QueryRowContext(ctx, `SELECT last_value FROM grant_token`).Scan(&now) == nil && now > since
	})
	r.firstGrant = time.Since(began)
	if err != nil {
		return r, fmt.Errorf("no grant: %w", err)
	}
	err = poll(ctx, ledgerPause, func() bool {
		held, err := x.heldCount(ctx)
		return err == nil && held >= x.fleet.Capacity*9/10
	})
	r.nearlyFull = time.Since(began)
	return r, err
}

// waitForGrants waits until each replica has granted a task over MQTT, and any replica over HTTP. If it returns an
// error, silent names the replicas and transports without a grant.
func (x *experiment) waitForGrants(ctx context.Context) (silent []string, err error) {
	var since map[string]float64
	err = poll(ctx, metricsPause, func() bool {
		now, err := x.grantCounts(ctx)
		if err != nil {
			return false // try again until ctx ends
		}
		if since == nil {
			since = now
		}
		silent = notIncreased(since, now)
		return len(silent) == 0
	})
	return silent, err
}

func notIncreased(since, now map[string]float64) (names []string) {
	for name, count := range now {
		if count <= since[name] {
			names = append(names, name)
		}
	}
	return names
}

// grantCounts returns the number of grants of each replica over MQTT, and of all replicas over HTTP.
func (x *experiment) grantCounts(ctx context.Context) (map[string]float64, error) {
	counts := map[string]float64{}
	for i, r := range x.replicas {
		samples, err := r.readMetric(ctx, "dispatcher_reports_total")
		if err != nil {
			return nil, err
		}
		counts["any replica over HTTP"] += samples[`reason="granted",transport="http"`]
		counts[fmt.Sprintf("replica %d over MQTT", i+1)] += samples[`reason="granted",transport="mqtt"`]
	}
	return counts, nil
}

// conflictCount returns how many slots Redis gave although the ledger then refused them.
func (x *experiment) conflictCount(ctx context.Context) (sum float64, err error) {
	for _, r := range x.replicas {
		samples, err := r.readMetric(ctx, "dispatcher_slot_conflicts_total")
		if err != nil {
			return 0, err
		}
		sum += samples[fmt.Sprintf("pool=%q", pool)]
	}
	return sum, nil
}

// readMetric reads the samples of one metric of the replica. The keys of the result are the labels. The key "" is a
// sample without labels.
func (r *replica) readMetric(ctx context.Context, name string) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.addr+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	samples := map[string]float64{}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		sample, ok := strings.CutPrefix(lines.Text(), name)
		labels, value, labelled := strings.Cut(sample, "} ")
		if !labelled {
			labels, value = "{", strings.TrimPrefix(sample, " ")
		}
		if !ok || !labelled && value == sample || !strings.HasPrefix(labels, "{") {
			continue
		}
		labels = labels[1:]
		if samples[labels], err = strconv.ParseFloat(value, 64); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return samples, lines.Err()
}

// heldCount returns the number of grants that are in force in the ledger.
func (x *experiment) heldCount(ctx context.Context) (held int, err error) {
	err = x.db.QueryRowContext(ctx, `SELECT count(*) FROM grants WHERE lease_until > now()`).Scan(&held)
	return held, err
}

// waitForAgreement waits, while the fleet works, until Redis agrees with the ledger about who holds which slot.
func (x *experiment) waitForAgreement(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	var trouble error
	if err := poll(ctx, ledgerPause, func() bool {
		trouble = x.compareStores(ctx)
		return trouble == nil
	}); err != nil {
		return fmt.Errorf("drift is not repaired: %w: %w", trouble, err)
	}
	return nil
}

// compareStores compares Redis with the ledger. It checks only entries that do not change while both are read. A
// grant that exists before and after Redis is read must be in Redis with the same slot. A lease that is in Redis
// before and after the ledger is read must be in the ledger, unless its claim may still be in flight.
func (x *experiment) compareStores(ctx context.Context) error {
	before, err1 := x.ledgerLeases(ctx)
	first, err2 := x.slots.Snapshot(ctx, pool)
	after, err3 := x.ledgerLeases(ctx)
	second, err4 := x.slots.Snapshot(ctx, pool)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	inRedis, still := leasesByID(first), leasesByID(second)
	for lease, slot := range before {
		_, stands := after[lease]
		if got, ok := inRedis[lease]; stands && (!ok || got.Slot != slot) {
			return fmt.Errorf("slot %d is granted to %s, Redis says %+v", slot, lease, got)
		}
	}
	for lease, in := range inRedis {
		_, stands := still[lease]
		if _, ok := after[lease]; stands && !ok && in.Age > maxClaimDelay {
			return fmt.Errorf("slot %d is held by %s for %s in Redis, and granted to nobody", in.Slot, lease, in.Age)
		}
	}
	return nil
}

// ledgerLeases returns the leases in the ledger, each with its slot.
func (x *experiment) ledgerLeases(ctx context.Context) (map[string]int, error) {
	rows, err := x.db.QueryContext(ctx, `SELECT lease, slot FROM grants`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	grants := map[string]int{}
	for rows.Next() {
		var lease string
		var slot int
		if err := rows.Scan(&lease, &slot); err != nil {
			return nil, err
		}
		grants[lease] = slot
	}
	return grants, rows.Err()
}

func leasesByID(s slots.Snapshot) map[string]slots.Lease {
	leases := make(map[string]slots.Lease, len(s.Leases))
	for _, l := range s.Leases {
		leases[l.ID] = l
	}
	return leases
}
