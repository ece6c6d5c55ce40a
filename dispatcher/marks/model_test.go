package marks

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// The devices of the model are in few hashes, so that several devices lose their marks together.
const modelDevices = 6

// errGone means that a replica was stopped, or that a server does not answer.
var errGone = errors.New("gone")

// world is a model of everything that the marks depend on. Each call of a server is a step, and any event can
// happen between two steps.
type world struct {
	*testing.T
	rand *rand.Rand
	now  time.Time

	open  [modelDevices]int // number of committed open tasks of each device
	since [modelDevices]time.Time
	by    [modelDevices]*replicaModel // the last replica that queued an open task and knows that it committed, or nil
	news  []store.News
	kept  int       // index of the oldest news that still exist
	deaf  time.Time // Redis accepts no marks before this time

	redis, other *redisModel // other is the abandoned side of a network split
	replicas     []*replicaModel
	depth        int // depth of nested events, which is bounded
	missing      int
}

// redisModel is a model of Redis and of the scripts, made of plain maps.
type redisModel struct {
	parts [parts]map[string]string
	saved [parts]map[string]string
}

func newRedisModel() *redisModel { return &redisModel{} }

func (r *redisModel) clone(all [parts]map[string]string) (c [parts]map[string]string) {
	for i := range all {
		c[i] = maps.Clone(all[i])
	}
	return c
}

// replicaModel is a replica that is connected to one side of Redis.
type replicaModel struct {
	*Follower
	w    *world
	at   **redisModel
	dead bool // the replica was stopped: each further step fails
	busy bool // a pass of Follow is in progress

	asleep time.Time // it starts no pass before this time
}

// follow runs one pass of Follow. A replica runs at most one pass at a time.
func (r *replicaModel) follow() {
	if r.busy || r.dead || r.w.now.Before(r.asleep) {
		return
	}
	r.busy = true
	defer func() { r.busy = false }()
	_ = r.Follow(context.Background())
}

func (r *replicaModel) step() error {
	r.w.happens()
	if r.dead {
		return errGone
	}
	return nil
}

func (r *replicaModel) Look(_ context.Context, devices []string) []Sight {
	sights := make([]Sight, len(devices))
	for i, d := range devices {
		sights[i] = Sight{Upto: unknown}
		if r.step() != nil {
			continue
		}
		if part := (*r.at).parts[partOf(d)]; part != nil {
			sights[i] = Sight{Version: part[d], Upto: uptoOf(part)}
		}
	}
	return sights
}

func uptoOf(part map[string]string) int64 {
	if part == nil {
		return unknown
	}
	return number(part[upto])
}

func (r *replicaModel) Upto(context.Context) (all [parts]int64, err error) {
	for i := range all {
		all[i] = unknown
	}
	if err := r.step(); err != nil {
		return all, err
	}
	for i := range all {
		all[i] = uptoOf((*r.at).parts[i])
	}
	return all, nil
}

// Mark marks the hashes in random order, because the nodes of a Cluster work concurrently. Any of the hashes
// may fail.
func (r *replicaModel) Mark(_ context.Context, from, to int64, all []Devices) (failed error) {
	for _, i := range r.w.rand.Perm(len(all)) {
		failed = errors.Join(failed, r.mark(from, to, all[i]))
	}
	return failed
}

func (r *replicaModel) mark(from, to int64, devices Devices) error {
	if len(devices.Names) > 0 || devices.Part%64 == 0 {
		if err := r.step(); err != nil {
			return err
		}
	}
	if r.w.now.Before(r.w.deaf) {
		return errGone
	}
	all := &(*r.at).parts[devices.Part]
	has := uptoOf(*all)
	if from >= 0 && has < from {
		return nil
	}
	if *all == nil {
		*all = make(map[string]string)
	}
	version := strconv.FormatUint(r.w.rand.Uint64(), 36)
	for _, d := range devices.Names {
		(*all)[d] = version
	}
	if from < 0 || has < to {
		(*all)[upto] = strconv.FormatInt(to, 10)
	}
	return nil
}

func (r *replicaModel) Unmark(_ context.Context, device, version string) (bool, error) {
	if err := r.step(); err != nil {
		return false, err
	}
	part := (*r.at).parts[partOf(device)]
	if part[device] != version {
		return false, nil
	}
	delete(part, device)
	return true, nil
}

func (r *replicaModel) NewsSince(_ context.Context, id int64) (store.NewsRead, error) {
	if err := r.step(); err != nil {
		return store.NewsRead{}, err
	}
	w := r.w
	read := store.NewsRead{Now: w.now, Oldest: w.news[w.kept].ID, Newest: w.news[len(w.news)-1].ID}
	for _, n := range w.news[w.kept:] {
		if n.ID > id && len(read.Rows) < 3 {
			read.Rows = append(read.Rows, n)
		}
	}
	return read, nil
}

func (r *replicaModel) EachOpen(_ context.Context, batch int64, each func(string)) error {
	for i := range modelDevices {
		if i%2 == 0 {
			if err := r.step(); err != nil {
				return err
			}
		}
		if r.w.open[i] > 0 && (batch == 0 || i%2 == int(batch%2)) {
			each(deviceName(i))
		}
	}
	return nil
}

func deviceName(i int) string { return "d" + strconv.Itoa(i) }

func (w *world) replica() *replicaModel {
	r := &replicaModel{w: w, at: &w.redis}
	if w.rand.IntN(4) == 0 {
		r.at = &w.other
	}
	r.Follower = New(Config{Ledger: r, Cache: r, Told: func(string) {}, Now: func() time.Time { return w.now }})
	return r
}

// look reads a mark like Follower.Look, but without a coalesced call.
func (r *replicaModel) look(i int) Answer {
	return r.answer(r.Look(context.Background(), []string{deviceName(i)})[0])
}

// happens causes random events between two steps.
func (w *world) happens() {
	if w.depth >= 2 {
		return
	}
	w.depth++
	defer func() { w.depth-- }()
	if w.rand.IntN(30) == 0 {
		for range 1 + w.rand.IntN(4) {
			w.event()
		}
	}
}

func (w *world) event() {
	switch w.rand.IntN(22) {
	case 0, 1, 2:
		w.work()
	case 3:
		w.open[w.rand.IntN(modelDevices)] = 0
	case 4:
		if w.rand.IntN(4) == 0 {
			w.open = [modelDevices]int{}
		}
	case 5, 6, 7:
		if w.rand.IntN(3) == 0 { // seldom, so that errors of the code are not hidden by losses of Redis
			w.redisEvent()
		}
	case 11:
		i := w.rand.IntN(len(w.replicas))
		w.replicas[i].dead, w.replicas[i] = true, w.replica()
	case 12:
		w.kept = max(w.kept, len(w.news)-1-w.rand.IntN(3)) // old news are deleted
	case 13:
		w.now = w.now.Add(time.Duration(w.rand.IntN(1000)) * time.Millisecond)
	case 14:
		w.replicas[w.rand.IntN(len(w.replicas))].asleep = w.now.Add(time.Duration(w.rand.IntN(20)) * time.Second)
	case 15:
		w.deaf = w.now.Add(time.Duration(w.rand.IntN(20)) * time.Second)
	case 16, 17:
		w.replicas[w.rand.IntN(len(w.replicas))].follow()
	default:
		w.report(w.replicas[w.rand.IntN(len(w.replicas))])
	}
}

// redisEvent causes a random failure of Redis.
func (w *world) redisEvent() {
	switch w.rand.IntN(6) {
	case 0:
		w.redis.parts = [parts]map[string]string{} // Redis was wiped
	case 1:
		w.redis.parts[partOf(deviceName(w.rand.IntN(modelDevices)))] = nil // a hash was evicted
	case 2:
		w.redis.saved = w.redis.clone(w.redis.parts)
	case 3:
		w.redis.parts = w.redis.clone(w.redis.saved) // a stale Redis replica became the primary
	case 4:
		w.other.parts = w.redis.clone(w.redis.parts) // a network split: some replicas continue with the other side
	default:
		w.redis, w.other = w.other, w.redis
	}
}

// work adds a task for one device, or for half of the devices.
func (w *world) work() {
	n := store.News{ID: w.news[len(w.news)-1].ID + 1 + int64(w.rand.IntN(2))}
	var by *replicaModel
	if w.rand.IntN(2) == 0 {
		by = w.replicas[w.rand.IntN(len(w.replicas))]
		by.belief.wrote(n.ID)
	}
	first := w.rand.IntN(modelDevices)
	if w.rand.IntN(2) == 0 {
		n.Device = deviceName(first)
		w.begin(first, by)
	} else {
		n.Batch = int64(2 + first%2)
		for i := first % 2; i < modelDevices; i += 2 {
			w.begin(i, by)
		}
	}
	w.news = append(w.news, n)
}

func (w *world) begin(i int, by *replicaModel) {
	if w.open[i]++; w.open[i] == 1 {
		w.since[i], w.by[i] = w.now, by
	} else if by != nil {
		w.by[i] = by
	}
}

// report handles a report that only asks for work. The marks promise that its work is found within five
// seconds, and at once by the replica that queued it.
func (w *world) report(by *replicaModel) {
	i := w.rand.IntN(modelDevices)
	answer := by.look(i)
	switch {
	case answer.Idle() && w.open[i] > 0 && (w.by[i] == by || w.now.Sub(w.since[i]) > 5*time.Second):
		w.missing++
	case answer.Version != "" && by.step() == nil && w.open[i] == 0:
		for range w.rand.IntN(12) { // other events may happen before the mark is deleted
			w.event()
		}
		_ = by.Clear(context.Background(), deviceName(i), answer.Version)
	}
}

// run executes random events for a number of rounds. It returns the number of idle answers, and of rounds
// with open tasks.
func (w *world) run(rounds int) (idle, worked int) {
	for range rounds {
		w.happens()
		w.now = w.now.Add(time.Duration(w.rand.IntN(500)) * time.Millisecond)
		by := w.replicas[w.rand.IntN(len(w.replicas))]
		if w.rand.IntN(2) == 0 {
			by.follow()
		}
		i := w.rand.IntN(modelDevices)
		if by.look(i).Idle() {
			idle++
		}
		if slices.Max(w.open[:]) > 0 {
			worked++
		}
		for range modelDevices {
			w.report(by)
		}
	}
	return idle, worked
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{T: t, rand: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_800_000_000, 0), news: []store.News{{ID: 1}}} //nolint:gosec // a test
	w.redis, w.other = newRedisModel(), newRedisModel()
	for range 3 {
		w.replicas = append(w.replicas, w.replica())
	}
	return w
}
