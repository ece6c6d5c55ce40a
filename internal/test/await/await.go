// Package await lets a test wait until a condition holds.
package await

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Patience is the longest time for which a test waits. Only a broken test waits for 2 minutes, because a busy machine
// stalls for seconds.
const Patience = 2 * time.Minute

// longestPause is the longest pause between two checks of a condition. The first pause is 1 ms, and each pause is twice
// as long as the one before.
const longestPause = 20 * time.Millisecond

// True calls holds until it returns true. After Patience, it fails the test with a message that contains what and the
// last state that holds has read. The values in seen give that state: pointers to variables, or functions that return it.
func True(tb testing.TB, what string, holds func() bool, seen ...any) {
	tb.Helper()
	deadline := time.Now().Add(Patience)
	for pause := time.Millisecond; !holds(); pause = min(2*pause, longestPause) {
		if time.Now().After(deadline) {
			tb.Fatalf("waited %s in vain for %s%s", Patience, what, lastState(seen))
		}
		<-time.After(pause)
	}
}

func lastState(seen []any) string {
	var text strings.Builder
	for _, one := range seen {
		state := reflect.Indirect(reflect.ValueOf(one))
		if state.Kind() == reflect.Func {
			state = state.Call(nil)[0]
		}
		_, _ = fmt.Fprintf(&text, "; last seen: %+v", state) // a strings.Builder accepts all writes
	}
	return text.String()
}

// Receive returns the next value of the channel, or the zero value if the channel is closed. After Patience, Receive
// fails the test with the message failure.
func Receive[T any](tb testing.TB, channel <-chan T, failure string) (value T) {
	tb.Helper()
	select {
	case value = <-channel:
	case <-time.After(Patience):
		tb.Fatalf("%s after %s", failure, Patience)
	}
	return value
}
