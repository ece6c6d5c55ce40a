package dispatcher

// Alone lets each report read and claim by itself, for comparison.
func (d *Dispatcher) Alone() {
	d.views.lanes, d.views.most = 1000, 1
	d.claiming.lanes, d.claiming.most = 1000, 1
}
