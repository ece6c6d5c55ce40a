package marks

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// The devices of the model share few Redis hashes, so that several devices lose their marks together.
const modelDevices = 6

// errGone means that a replica was stopped, or that a server does not answer.
var errGone = errors.New("gone")

// worldModel is a model of everything that the marks depend on: the ledger, Redis and the replicas. Each call of a
// server is one step, and any event can happen between two steps.
type worldModel struct {
	*testing.T
	rand *rand.Rand
	now  time.Time

	openTasks         [modelDevices]int // number of committed open tasks of each device
	openSince         [modelDevices]time.Time
	queuedBy          [modelDevices]*replicaModel // the last replica that queued an open task and knows that it committed, or nil
	news              []store.News
	oldestNews        int       // index of the oldest news that still exist
	refusesMarksUntil time.Time // Redis accepts no marks before this time

	redis, splitRedis *redisModel // splitRedis is the abandoned side of a network split
	replicas          []*replicaModel
	depth             int // depth of nested events, which is bounded
	missedWork        int

	waitChanges [modelDevices][]waitChange // the committed changes after which a device may wait for another reason, oldest first
	wrongWaits  int                        // answers from a wait that was recorded before such a change
	keptWaits   int                        // answers from a wait
}

// waitChange is a committed change of the ledger that concerns a waiting device.
type waitChange struct {
	at time.Time
	by *replicaModel // the replica that made the change, if it knows that the change was committed; otherwise nil
}

// modelPool returns the pool in which device i waits.
func modelPool(i int) string { return "pool" + strconv.Itoa(i%3) }

// waitsForever returns the end of a wait that includes no change. For each change that was committed before the device of a wait was read, the
// end of the wait is one millisecond later. So the end of a wait shows which changes the wait includes.
func waitsForever() time.Time { return time.UnixMilli(9_000_000_000_000) }

// redisModel is a model of Redis and of the scripts that change marks. It consists of plain maps.
type redisModel struct {
	parts [hashCount]map[string]string
	saved [hashCount]map[string]string
}

func newRedisModel() *redisModel { return &redisModel{} }

func (r *redisModel) clone(all [hashCount]map[string]string) (c [hashCount]map[string]string) {
	for i := range all {
		c[i] = maps.Clone(all[i])
	}
	return c
}

// replicaModel is a replica in the model. It is connected to one side of Redis.
type replicaModel struct {
	*Follower
	world       *worldModel
	redis       **redisModel
	isDead      bool // the replica was stopped: each further step fails
	isFollowing bool // a pass of FollowNews is in progress

	asleepUntil time.Time // it starts no pass before this time
}

// runFollow runs one pass of FollowNews, which brings the marks up to date. A replica runs at most one pass at a time.
func (r *replicaModel) runFollow() {
	if r.isFollowing || r.isDead || r.world.now.Before(r.asleepUntil) {
		return
	}
	r.isFollowing = true
	defer func() { r.isFollowing = false }()
	_ = r.FollowNews(context.Background())
}

func (r *replicaModel) step() error {
	r.world.causeEvents()
	if r.isDead {
		return errGone
	}
	return nil
}

func (r *replicaModel) ReadMarks(_ context.Context, devices []string) []MarkReading {
	sights := make([]MarkReading, len(devices))
	for i, d := range devices {
		sights[i] = MarkReading{Position: missingHash}
		if r.step() != nil {
			continue
		}
		if part := (*r.redis).parts[marksHashIndex(d)]; part != nil {
			sights[i] = parseMarkReading([]any{part[positionField], part[d]})
		}
	}
	return sights
}

func partUpto(part map[string]string) int64 {
	if part == nil {
		return missingHash
	}
	return parsePosition(part[positionField])
}

func (r *replicaModel) ReadPositions(context.Context) (all [hashCount]int64, err error) {
	for i := range all {
		all[i] = missingHash
	}
	if err := r.step(); err != nil {
		return all, err
	}
	for i := range all {
		all[i] = partUpto((*r.redis).parts[i])
	}
	return all, nil
}

// MarkDevices marks the devices of all hashes in random order, because the nodes of a Redis Cluster work concurrently. Any
// of the hashes may fail.
func (r *replicaModel) MarkDevices(_ context.Context, from, to int64, all []HashDevices) (failed error) {
	for _, i := range r.world.rand.Perm(len(all)) {
		failed = errors.Join(failed, r.markHash(from, to, all[i]))
	}
	return failed
}

func (r *replicaModel) markHash(from, to int64, devices HashDevices) error {
	if len(devices.Names) > 0 || devices.HashIndex%64 == 0 {
		if err := r.step(); err != nil {
			return err
		}
	}
	if r.world.now.Before(r.world.refusesMarksUntil) {
		return errGone
	}
	all := &(*r.redis).parts[devices.HashIndex]
	has := partUpto(*all)
	if from >= 0 && has < from {
		return nil
	}
	if *all == nil {
		*all = make(map[string]string)
	}
	version := strconv.FormatUint(r.world.rand.Uint64(), 36)
	for _, d := range devices.Names {
		(*all)[d] = version
	}
	if from < 0 || has < to {
		(*all)[positionField] = strconv.FormatInt(to, 10)
	}
	return nil
}

func (r *replicaModel) EndWaits(_ context.Context, devices []string) error {
	if err := r.step(); err != nil {
		return err
	}
	for _, device := range devices {
		if part := (*r.redis).parts[marksHashIndex(device)]; part[device] != "" {
			part[device] = strconv.FormatUint(r.world.rand.Uint64(), 36)
		}
	}
	return nil
}

func (r *replicaModel) DeleteMark(_ context.Context, device, version string) (bool, error) {
	if err := r.step(); err != nil {
		return false, err
	}
	part := (*r.redis).parts[marksHashIndex(device)]
	if present, _, _ := strings.Cut(part[device], "|"); present != version {
		return false, nil
	}
	delete(part, device)
	return true, nil
}

func (r *replicaModel) RecordWaits(_ context.Context, waits []DeviceWait) error {
	for _, w := range waits {
		if err := r.step(); err != nil {
			return err
		}
		part := (*r.redis).parts[marksHashIndex(w.Device)]
		if version, _, _ := strings.Cut(part[w.Device], "|"); version != "" && version == w.Version {
			part[w.Device] = version + "|" + w.Wait.String()
		}
	}
	return nil
}

func (r *replicaModel) NewsSince(_ context.Context, id int64) (store.NewsPage, error) {
	if err := r.step(); err != nil {
		return store.NewsPage{}, err
	}
	w := r.world
	read := store.NewsPage{Now: w.now, Oldest: w.news[w.oldestNews].ID, Newest: w.news[len(w.news)-1].ID}
	for _, n := range w.news[w.oldestNews:] {
		if n.ID > id && len(read.Rows) < 3 {
			read.Rows = append(read.Rows, n)
		}
	}
	return read, nil
}

func (r *replicaModel) ForEachOpenDevice(_ context.Context, batch int64, each func(string)) error {
	for i := range modelDevices {
		if i%2 == 0 {
			if err := r.step(); err != nil {
				return err
			}
		}
		if r.world.openTasks[i] > 0 && (batch == 0 || i%2 == int(batch%2)) {
			each(deviceName(i))
		}
	}
	return nil
}

func deviceName(i int) string { return "d" + strconv.Itoa(i) }

func (w *worldModel) newReplica() *replicaModel {
	r := &replicaModel{world: w, redis: &w.redis}
	if w.rand.IntN(4) == 0 {
		r.redis = &w.splitRedis
	}
	r.Follower = New(Config{Ledger: r, Cache: r, OnNews: func(string) {}, Now: func() time.Time { return w.now }})
	return r
}

// readMark reads the mark of device i, as Follower.ReadMark does, but does not share the call with other reports.
func (r *replicaModel) readMark(i int) DeviceMark {
	return r.newDeviceMark(r.ReadMarks(context.Background(), []string{deviceName(i)})[0])
}

// causeEvents causes random events between two steps.
func (w *worldModel) causeEvents() {
	if w.depth >= 2 {
		return
	}
	w.depth++
	defer func() { w.depth-- }()
	if w.rand.IntN(30) == 0 {
		for range 1 + w.rand.IntN(4) {
			w.causeEvent()
		}
	}
}

func (w *worldModel) causeEvent() {
	switch w.rand.IntN(22) {
	case 0:
		w.queueWork()
	case 3:
		w.endTasks(w.rand.IntN(modelDevices))
	case 4:
		if w.rand.IntN(4) == 0 {
			for i := range modelDevices {
				w.endTasks(i)
			}
		}
	case 5, 6, 7:
		if w.rand.IntN(3) == 0 { // rarely, so that losses of Redis do not hide errors of the code
			w.causeRedisEvent()
		}
	case 11:
		i := w.rand.IntN(len(w.replicas))
		w.replicas[i].isDead, w.replicas[i] = true, w.newReplica()
	case 12:
		w.oldestNews = max(w.oldestNews, len(w.news)-1-w.rand.IntN(3)) // old news are deleted
	case 13:
		w.now = w.now.Add(time.Duration(w.rand.IntN(1000)) * time.Millisecond)
	case 14:
		w.replicas[w.rand.IntN(len(w.replicas))].asleepUntil = w.now.Add(time.Duration(w.rand.IntN(20)) * time.Second)
	case 15:
		w.refusesMarksUntil = w.now.Add(time.Duration(w.rand.IntN(20)) * time.Second)
	case 16, 17:
		w.replicas[w.rand.IntN(len(w.replicas))].runFollow()
	case 18:
		w.changePool()
	default:
		w.handleReport(w.replicas[w.rand.IntN(len(w.replicas))])
	}
}

// causeRedisEvent causes a random failure of Redis.
func (w *worldModel) causeRedisEvent() {
	switch w.rand.IntN(6) {
	case 0:
		w.redis.parts = [hashCount]map[string]string{} // Redis was wiped
	case 1:
		w.redis.parts[marksHashIndex(deviceName(w.rand.IntN(modelDevices)))] = nil // a hash was evicted
	case 2:
		w.redis.saved = w.redis.clone(w.redis.parts)
	case 3:
		w.redis.parts = w.redis.clone(w.redis.saved) // a stale Redis replica became the primary
	case 4:
		w.splitRedis.parts = w.redis.clone(w.redis.parts) // a network split: some replicas continue with the other side
	default:
		w.redis, w.splitRedis = w.splitRedis, w.redis
	}
}

// queueWork queues a task for one device, or for half of the devices.
func (w *worldModel) queueWork() {
	n, by := w.nextNews()
	first := w.rand.IntN(modelDevices)
	if w.rand.IntN(2) == 0 {
		n.Device = deviceName(first)
		w.addOpenTask(first, by)
	} else {
		n.Batch = int64(2 + first%2)
		for i := first % 2; i < modelDevices; i += 2 {
			w.addOpenTask(i, by)
		}
	}
	w.news = append(w.news, n)
}

func (w *worldModel) addOpenTask(i int, by *replicaModel) {
	if w.openTasks[i]++; w.openTasks[i] == 1 {
		w.openSince[i], w.queuedBy[i] = w.now, by
	} else if by != nil {
		w.queuedBy[i] = by
	}
	w.waitChanges[i] = append(w.waitChanges[i], waitChange{w.now, by})
}

// endTasks ends all tasks of device i. From then on, no earlier change has to end a recorded wait of the device: the queue does not contain a
// device without tasks, and the next task of the device is a new change.
func (w *worldModel) endTasks(i int) {
	w.openTasks[i] = 0
	for n := range w.waitChanges[i] {
		w.waitChanges[i][n] = waitChange{at: waitsForever()}
	}
}

// nextNews returns the next row of the news. by is the replica that commits the row. If this replica does not know that the row was committed,
// by is nil.
func (w *worldModel) nextNews() (n store.News, by *replicaModel) {
	n = store.News{ID: w.news[len(w.news)-1].ID + 1 + int64(w.rand.IntN(2))}
	if w.rand.IntN(2) == 0 {
		by = w.replicas[w.rand.IntN(len(w.replicas))]
		by.trust.recordOwnCommit(n.ID)
	}
	return n, by
}

// changePool changes one pool, or all of them.
func (w *worldModel) changePool() {
	n, by := w.nextNews()
	if n.Pool = modelPool(w.rand.IntN(3)); w.rand.IntN(4) == 0 {
		n.Pool = store.AllPools
	}
	for i := range modelDevices {
		if n.Pool == store.AllPools || n.Pool == modelPool(i) {
			w.waitChanges[i] = append(w.waitChanges[i], waitChange{w.now, by})
		}
	}
	w.news = append(w.news, n)
}

// checkWait checks an answer to a report of device i that was given from the recorded wait. by is the replica that answered. The answer
// is wrong if a change that the wait does not include was made by this replica, or more than five seconds ago.
func (w *worldModel) checkWait(i int, wait Wait, by *replicaModel) {
	w.keptWaits++
	included := int(wait.Until.Sub(waitsForever()).Milliseconds())
	for _, c := range w.waitChanges[i][included:] {
		if c.by == by || w.now.Sub(c.at) > 5*time.Second {
			w.wrongWaits++
			return
		}
	}
}

// handleReport handles a report of a device that only asks for work. The marks promise two things: the replica that
// queued the work finds it at once, and every other replica finds it within five seconds.
func (w *worldModel) handleReport(by *replicaModel) {
	i := w.rand.IntN(modelDevices)
	answer := by.readMark(i)
	switch {
	case answer.IsIdle() && w.openTasks[i] > 0 && (w.queuedBy[i] == by || w.now.Sub(w.openSince[i]) > 5*time.Second):
		w.missedWork++
	case answer.Wait.Pool != "":
		w.checkWait(i, answer.Wait, by)
	case answer.Version != "" && by.step() == nil && w.openTasks[i] == 0:
		for range w.rand.IntN(12) { // other events may happen before the mark is deleted
			w.causeEvent()
		}
		_ = by.ClearMark(context.Background(), deviceName(i), answer.Version)
	case answer.Version != "" && w.rand.IntN(8) == 0 && by.step() == nil && w.openTasks[i] > 0:
		until := waitsForever().Add(time.Duration(len(w.waitChanges[i])) * time.Millisecond)
		for range w.rand.IntN(3) { // other events may happen before the wait is recorded
			w.causeEvent()
		}
		wait := DeviceWait{deviceName(i), answer.Version, Wait{Pool: modelPool(i), Position: answer.Position, Until: until}}
		_ = by.RecordWaits(context.Background(), []DeviceWait{wait}) // RecordWait would share the call with nested events
	}
}

// runRounds runs the model with random events for a number of rounds. In busyRounds of them, tasks were open.
func (w *worldModel) runRounds(rounds int) (idleAnswers, busyRounds int) {
	for range rounds {
		w.causeEvents()
		w.now = w.now.Add(time.Duration(w.rand.IntN(500)) * time.Millisecond)
		by := w.replicas[w.rand.IntN(len(w.replicas))]
		if w.rand.IntN(2) == 0 {
			by.runFollow()
		}
		i := w.rand.IntN(modelDevices)
		if by.readMark(i).IsIdle() {
			idleAnswers++
		}
		if slices.Max(w.openTasks[:]) > 0 {
			busyRounds++
		}
		for range modelDevices {
			w.handleReport(by)
		}
	}
	return idleAnswers, busyRounds
}

func newWorld(t *testing.T, seed uint64) *worldModel {
	t.Helper()
	w := &worldModel{T: t, rand: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_800_000_000, 0), news: []store.News{{ID: 1}}}
	w.redis, w.splitRedis = newRedisModel(), newRedisModel()
	for range 3 {
		w.replicas = append(w.replicas, w.newReplica())
	}
	return w
}
