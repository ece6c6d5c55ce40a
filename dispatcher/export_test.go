package dispatcher

// Alone makes each report use calls of its own for reads and claims, for comparison with coalesced calls.
func (d *Dispatcher) Alone() {
	d.together.views.Lanes, d.together.views.Most = 1000, 1
	d.together.claims.Lanes, d.together.claims.Most = 1000, 1
}
