package dispatcher

// DisableCoalescing makes each report read and claim with calls of its own. A benchmark compares these calls with the usual calls, which
// several reports share.
func (d *Dispatcher) DisableCoalescing() {
	d.ledgerCalls.views.MaxConcurrent, d.ledgerCalls.views.MaxSize = 1000, 1
	d.ledgerCalls.claims.MaxConcurrent, d.ledgerCalls.claims.MaxSize = 1000, 1
}

// AuditNextReport makes the dispatcher audit the next report that the mark of its device could answer.
func (d *Dispatcher) AuditNextReport() { d.auditable.Store(auditInterval - 1) }
