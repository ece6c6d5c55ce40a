package dispatcher

// DisableCoalescing makes each report use calls of its own for reads and claims, for comparison with coalesced calls.
func (d *Dispatcher) DisableCoalescing() {
	d.ledgerCalls.views.MaxConcurrent, d.ledgerCalls.views.MaxSize = 1000, 1
	d.ledgerCalls.claims.MaxConcurrent, d.ledgerCalls.claims.MaxSize = 1000, 1
}
