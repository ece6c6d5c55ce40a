package operators_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/operators"
)

// The API description gives a default for each field of a batch that may be omitted. An omitted field must get this
// default.
func TestTheDescriptionHasTheDefaults(t *testing.T) {
	t.Parallel()
	batch := reflect.ValueOf(operators.NewBatch{}.WithDefaults())
	for i := range batch.NumField() {
		field, value := batch.Type().Field(i), batch.Field(i)
		described, has := field.Tag.Lookup("default")
		if field.Name == "Duplicates" { // this field stays empty: it belongs to the request and is no property of the batch
			continue
		}
		if value.Kind() == reflect.Pointer && !value.IsNil() {
			value = value.Elem()
		}
		if got := fmt.Sprint(value); has && got != described {
			t.Errorf("%s: the default is %s, described as %s", field.Name, got, described)
		}
	}
}

// A request sets a field of a batch to a value, also to a zero value such as 0 or false. The field keeps this value
// and does not get its default.
func TestFieldsThatAreSetKeepTheirValues(t *testing.T) {
	t.Parallel()
	zero, no := int64(0), false
	set := operators.NewBatch{Weight: 7, Lane: "urgent", MaxAttempts: 1, RetryBackoffMS: &zero, RetryOn: []string{"failed"}, OnLost: "fail", FinishInside: &no}
	before, err := json.Marshal(set)
	must.Succeed(t, err)
	if after, err := json.Marshal(set.WithDefaults()); err != nil || string(after) != string(before) {
		t.Errorf("%s became %s (%v)", before, after, err)
	}
}
