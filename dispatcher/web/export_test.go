package web

// Held is how many slots of a pool the charts show, by time in ms, and what was
// granted and taken back since the point before.
func (w *Web) Held(pool string) (at []int64, held, grants, reaps []int) {
	for _, p := range w.history.of(pool) {
		at, held, grants, reaps = append(at, p.at), append(held, int(p.held)), append(grants, int(p.grants)), append(reaps, int(p.reaps))
	}
	return at, held, grants, reaps
}
