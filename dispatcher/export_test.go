package dispatcher

// Alone lets each report read and claim by itself, for comparison.
func (d *Dispatcher) Alone() {
	d.together.views.Lanes, d.together.views.Most = 1000, 1
	d.together.claims.Lanes, d.together.claims.Most = 1000, 1
}
