package dispatcher

import "time"

// Alone lets each report read and claim by itself, for comparison.
func (d *Dispatcher) Alone() {
	d.views.lanes, d.views.most = 1000, 1
	d.claiming.lanes, d.claiming.most = 1000, 1
}

// Held teaches how long a grant of a pool was held.
func (d *Dispatcher) Held(pool string, usually time.Duration) { d.holds.add(pool, "", usually) }
