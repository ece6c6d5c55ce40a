package simulator

import (
	"testing"
	"time"
)

// TestAnOperatorWaitsForAnImport checks the operator's client: an import may take more than five minutes, because a
// broker must create the accounts.
func TestAnOperatorWaitsForAnImport(t *testing.T) {
	t.Parallel()
	o, err := NewOperator("http://dispatcher.example", testOperatorToken)
	if err != nil {
		t.Fatal(err)
	}
	if limit := o.http.ResponseHeaderTimeout; limit < 6*time.Minute {
		t.Errorf("an answer may take %s", limit)
	}
}
