package pace

// Buckets returns the number of stored buckets.
func (l *Limiter) Buckets() (n int) {
	for i := range l.shards {
		l.shards[i].mu.Lock()
		n += len(l.shards[i].buckets)
		l.shards[i].mu.Unlock()
	}
	return n
}
