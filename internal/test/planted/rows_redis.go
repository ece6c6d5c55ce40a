package main

// redisMistakes returns the planted mistakes in the semaphore and in the limits: in their Lua scripts and in the Go
// code that calls them.
func redisMistakes() []Mistake {
	scripts := []string{"slots", "dispatcher"}
	counts := []string{"limits", "dispatcher"}
	return []Mistake{
		{
			Package: "slots", Func: "lua/core.lua",
			Old: `and redis.call('HLEN', p.holder) == p.held`, New: ``,
			Breaks: "a pool that lost the records of its holders counts as known", Tests: scripts,
		},
		{
			Package: "slots", Func: "lua/core.lua",
			Old: `parse_holder(h.slot, text).lease ~= h.lease`, New: `parse_holder(h.slot, text).device ~= h.device`,
			Breaks: "reconciliation takes a slot from the newer lease of a device without comparing the lease id", Tests: scripts,
		},
		{
			Package: "slots", Func: "lua/core.lua",
			Old: `if p.held >= p.capacity then return nil end`, New: `if redis.call('ZCOUNT', p.free, 0, 0) == 0 then return nil end`,
			Breaks: "a slot is given while as many slots are held as a lowered capacity allows", Tests: scripts,
		},
		{
			Package: "slots", Func: "lua/configure.lua",
			Old: `args.version <= tonumber(current[1])`, New: `args.version == tonumber(current[1])`,
			Breaks: "an older capacity that arrives late replaces the newer capacity", Tests: scripts,
		},
		{
			Package: "slots", Func: "lua/restore.lua",
			Old: `if args.offset > 0 then return 0 end`, New: ``,
			Breaks: "a restore whose first part was lost makes the pool known without these holders", Tests: scripts,
		},
		{
			Package: "slots", Func: "lua/serve.lua",
			Old: `if slot then return { slot = slot, want = i } end`, New: ``,
			Breaks: "a lease that asks again is given a second slot", Tests: scripts,
		},
		{
			Package: "slots", Func: "lua/batch_order.lua",
			Old: `local CLOSED_RATIO = 2 * PRECEDENCE_BONUS`, New: `local CLOSED_RATIO = 0`,
			Breaks: "free slots are offered to devices whose batch is paused", Tests: scripts,
		},
		{
			Package: "slots", Func: "lua/refresh.lua",
			Old: `return p.capacity and p.capacity - p.held <= state.offered`, New: `return true`,
			Breaks: "a device keeps waiting although a slot is free", Tests: scripts,
		},
		{
			Package: "slots", Func: "lua/queue.lua",
			Old: `elseif w.ends > q.now then add_offer(q, w) else move_waiter(q, w, 'P') end`, New: `else add_offer(q, w) end`,
			Breaks: "a slot that was offered to a device which did not come is never offered to the next device", Tests: scripts,
		},
		{
			Package: "slots", Func: "lua/batch_order.lua",
			Old: `math.ceil(q.pool.capacity * q.state.percent / 100) - q.state.lane`, New: `math.ceil(q.pool.capacity * q.state.percent / 100)`,
			Breaks: "urgent batches go before all others beyond their share of the pool", Tests: scripts,
		},
		{
			Package: "slots", Func: "lua/batch_order.lua",
			Old: `or b.held / b.weight`, New: `or b.held`,
			Breaks: "free slots are offered without regard to the weights of batches", Tests: scripts,
		},
		{
			Package: "slots", Func: "lua/queue.lua",
			Old: `math.min(reach == 0 and foreseen or math.huge, q.state.grants + place)`, New: `q.state.grants + place`,
			Breaks: "a device that polls loses its position with each report", Tests: scripts,
		},
		{
			Package: "slots", Func: "taskSortText",
			Old: `1<<31-int64(priority)`, New: `1<<31+int64(priority)`,
			Breaks: "the task with the lowest priority of a batch goes first", Tests: scripts,
		},
		{
			Package: "limits", Func: "lua/base.lua",
			Old: `if reserved >= max or t`, New: `if reserved > max or t`,
			Breaks: "a sliding window lets one start too many pass while it is full of reservations", Tests: counts,
		},
		{
			Package: "limits", Func: "lua/reserve.lua",
			Old: `open > 0 and other_reservations(item.key, group) or {}`, New: `{}`,
			Breaks: "starts that are decided at the same time pass a window that has room for one of them", Tests: counts,
		},
		{
			Package: "limits", Func: "lua/settle.lua",
			Old: `(state == 'known' or state == 'settling') and record_counted(rule_name(key), e.lease, now)`, New: `(state == 'known' or state == 'settling')`,
			Breaks: "a start that is settled twice is counted twice", Tests: counts,
		},
		{
			Package: "limits", Func: "lua/take.lua",
			Old: `if MODE == 'T' and verdict == ALLOWED then`, New: `if MODE == 'T' and verdict ~= REFUSED then`,
			Breaks: "a take that is sent again with its id is counted again", Tests: counts,
		},
		{
			Package: "limits", Func: "lua/take.lua",
			Old: `uncount(item, taken_at, total - returned)`, New: `uncount(item, taken_at, total)`,
			Breaks: "two returns of parts of a take give back more than was asked for", Tests: counts,
		},
		{
			Package: "limits", Func: "rebuild.countNewStarts",
			Old: `r.elapsed()+maxHistoryDelay`, New: `r.elapsed()`,
			Breaks: "a start that committed while a rule began to be filled from the history is not counted", Tests: counts,
		},
		{
			Package: "limits", Func: "Reservations.askInEpoch",
			Old: `err = r.epochs.requireEpoch(ctx, key.scope, epoch); err == nil`, New: `err == nil`,
			Breaks: "a start passes by the counts of a Redis that lost counts while it was asked", Tests: counts,
		},
		{
			Package: "limits", Func: "periodStarts",
			Old: `y, m, d := around.In(zone).Date()`, New: `y, m, d := around.UTC().Date()`,
			Breaks: "a calendar policy ends its day at midnight of UTC and not of its time zone", Tests: counts,
		},
		{
			Package: "limits", Func: "formatCanonical",
			Old: `decoder.UseNumber()`, New: ``,
			Breaks: "the policy duplicate takes payloads for equal that differ in a large number", Tests: counts,
		},
	}
}
