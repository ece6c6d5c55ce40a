package dispatcher

// Alone lets each report read and claim by itself, for comparison.
func (d *Dispatcher) Alone() {
	d.views.Lanes, d.views.Most = 1000, 1
	d.claiming.Lanes, d.claiming.Most = 1000, 1
}
