package meters

import "sync"

// Ready keeps what counts by its labels: to find it among the metrics takes ten times as
// long as to count. The labels must be few, and of no pool: what is kept never goes.
type Ready[Labels comparable, Counts any] struct {
	find func(Labels) Counts

	mu    sync.RWMutex
	found map[Labels]Counts
}

// NewReady returns one that finds what counts by find, once or more often.
func NewReady[Labels comparable, Counts any](find func(Labels) Counts) *Ready[Labels, Counts] {
	return &Ready[Labels, Counts]{find: find, found: make(map[Labels]Counts)}
}

// Of returns what counts under these labels.
func (r *Ready[Labels, Counts]) Of(labels Labels) Counts {
	r.mu.RLock()
	counts, known := r.found[labels]
	r.mu.RUnlock()
	if known {
		return counts
	}
	counts = r.find(labels)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.found[labels] = counts
	return counts
}
