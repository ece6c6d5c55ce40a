package slots_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/slots"
)

// queueKeys are the Redis keys of a pool's queue. Their content must never affect whether a slot is given.
var queueKeys = slots.Keys("")[4:] //nolint:gochecknoglobals // a constant

// brokenInvariant reads the Redis keys of a known pool. If all invariants hold, it returns "". Otherwise it returns
// the name of a broken invariant (header of lua/core.lua) and details.
func (h callHistory) brokenInvariant(t rapid.TB) string {
	t.Helper()
	free, err1 := h.client.ZRangeWithScores(h.ctx, h.key("free"), 0, -1).Result()
	holder, err2 := h.client.HGetAll(h.ctx, h.key("holder")).Result()
	lease, err3 := h.client.HGetAll(h.ctx, h.key("lease")).Result()
	capacity, err4 := h.client.HGet(h.ctx, h.key("config"), "capacity").Int()
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil {
		t.Fatal(err1, err2, err3, err4)
	}
	for slot, record := range holder {
		if lease[record[strings.LastIndex(record, "|")+1:]] != slot {
			return fmt.Sprintf("INVERSE: slot %s is of %s, leases %v", slot, record, lease)
		}
	}
	if len(lease) != len(holder) {
		return fmt.Sprintf("INVERSE: %d leases hold %d slots", len(lease), len(holder))
	}
	below := 0
	for _, z := range free {
		slot := fmt.Sprint(z.Member)
		if _, held := holder[slot]; held != (z.Score == 1) || !held && z.Score != 0 {
			return fmt.Sprintf("PARTITION: slot %s has score %v, held %v", slot, z.Score, held)
		}
		switch n, err := strconv.Atoi(slot); {
		case err != nil || n >= capacity && z.Score == 0:
			return fmt.Sprintf("RANGE: slot %s is free, of %d", slot, capacity)
		case n < capacity:
			below++
		}
	}
	if below != capacity {
		return fmt.Sprintf("RANGE: %d numbers below %d", below, capacity)
	}
	return ""
}

// TestTheCoreHoldsWhateverBecomesOfTheQueue makes random calls while parts of the queue are deleted or replaced with wrong content. The
// invariants CAP and FENCE must hold. The test checks them without Redis: it records which leases were given a slot and have not freed it.
func TestTheCoreHoldsWhateverBecomesOfTheQueue(t *testing.T) {
	t.Parallel()
	runHistories(t, func(t *rapid.T, h callHistory) {
		m := &coreMachine{callHistory: h, capacity: rapid.IntRange(0, 4).Draw(t, "capacity"), held: map[string]bool{}}
		if ok, err := h.Restore(h.ctx, h.pool, slots.Config{Capacity: m.capacity, Version: 1}, nil); !ok || err != nil {
			t.Fatal(ok, err)
		}
		t.Repeat(map[string]func(*rapid.T){
			"":        m.check,
			"ask":     m.requestSlot,
			"again":   m.requestSlot,
			"release": m.release,
			"garble":  m.damageQueue,
		})
	})
}

type coreMachine struct {
	callHistory

	capacity  int
	lastLease int
	held      map[string]bool
}

func (m *coreMachine) requestSlot(t *rapid.T) {
	m.lastLease++
	lease := strconv.Itoa(m.lastLease)
	r := newRequest(fmt.Sprint("d", rapid.IntRange(0, 5).Draw(t, "device")), slots.Want{Lease: lease, TTL: time.Hour, Batch: rapid.Int64Range(1, 3).Draw(t, "batch"), Task: int64(m.lastLease)})
	r.Wants[0].LanePercent = rapid.SampledFrom([]int{0, 10}).Draw(t, "lane") // the lane of a batch can change
	r.Reach = slots.Reach(rapid.IntRange(0, 2).Draw(t, "reach"))
	got, _, err := m.Acquire(m.ctx, m.pool, queuePace, []slots.Request{r})
	if err != nil { // with such a queue a script may fail; the next script repairs the queue
		return
	}
	if got[0].Status == slots.StatusAcquired {
		m.held[lease] = true
	}
}

func (m *coreMachine) release(t *rapid.T) {
	lease := strconv.Itoa(rapid.IntRange(1, 9).Draw(t, "lease"))
	freed, _, err := m.Release(m.ctx, m.pool, queuePace, []string{lease, lease + ".x"})
	if err != nil {
		delete(m.held, lease) // the script may have freed the slot before it failed
		return
	}
	if m.held[lease] && !freed[0] || freed[1] {
		t.Fatalf("FENCE: %s: %v, held %v", lease, freed, m.held)
	}
	delete(m.held, lease)
}

// damageQueue damages the queue in Redis. It deletes a key of the queue, deletes one member of a key, or adds a wrong member.
func (m *coreMachine) damageQueue(t *rapid.T) {
	name := strings.TrimPrefix(rapid.SampledFrom(queueKeys).Draw(t, "key"), "slots:{}:")
	key, hash := m.key(name), name == "waiter" || name == "batch"
	first := func(all []string) string { return append(all, "none")[0] }
	switch what := rapid.IntRange(0, 3).Draw(t, "what"); {
	case what < 2:
		m.client.Del(m.ctx, key)
	case what == 2 && hash:
		m.client.HDel(m.ctx, key, first(m.client.HKeys(m.ctx, key).Val()))
	case what == 2:
		m.client.ZRem(m.ctx, key, first(m.client.ZRange(m.ctx, key, 0, 0).Val()))
	case !hash:
		member := rapid.SampledFrom([]string{"d1", "H|0000000000000001|7", "0000000000000000|0000000000000001"}).Draw(t, "member")
		m.client.ZAdd(m.ctx, key, redis.Z{Member: member})
	}
	_, err1 := m.OfferSlots(m.ctx, m.pool, queuePace, nil)
	if _, err2 := m.OfferSlots(m.ctx, m.pool, queuePace, nil); err2 != nil {
		t.Fatalf("%s stays broken: %v, then %v", name, err1, err2)
	}
}

func (m *coreMachine) check(t *rapid.T) {
	if broken := m.brokenInvariant(t); broken != "" {
		t.Fatal(broken)
	}
	leases, err := m.client.HGetAll(m.ctx, m.key("lease")).Result()
	if err != nil || len(leases) > m.capacity {
		t.Fatalf("CAP: %v held, of %d (%v)", leases, m.capacity, err)
	}
	for lease := range m.held {
		if leases[lease] == "" {
			t.Fatalf("FENCE: %s holds nothing, and gave nothing back: %v", lease, leases)
		}
	}
}
