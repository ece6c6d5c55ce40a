package simulator

import (
	"testing"
	"time"
)

// A broker makes the accounts of an import for up to five minutes.
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
