// Package rescue starts the goroutines of a server. A panic in one of them ends the work of this goroutine, but never the process.
// TestNoGoroutineEndsTheProcess forbids all other ways to start a goroutine.
//
// If a caller waits for the outcome, the panic is returned as an error (Call, Async, Group), and the code that logs errors passes it to
// PanicHandler.Report. If no caller waits, the panic is reported to the PanicHandler at once (PanicHandler.Go, ReportingGroup).
// PanicHandler.Run is for callbacks in goroutines that other modules start.
package rescue

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Panic is a recovered panic as an error.
type Panic struct { //nolint:errname // named after its content, a panic
	Cause any
	Stack []byte // stack of the goroutine that panicked
}

// Error returns the cause without the stack. A PanicHandler logs the stack.
func (p *Panic) Error() string { return fmt.Sprintf("panicked: %v", p.Cause) }

// Call runs work and returns its error. If work panics, the error is a *Panic.
func Call(work func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = &Panic{Cause: cause, Stack: debug.Stack()}
		}
	}()
	return work()
}

// Async runs work in a goroutine. The channel delivers the error of work once. If work panics, the error is a *Panic.
func Async(work func() error) (done <-chan error) {
	result := make(chan error, 1)
	go func() { result <- Call(work) }()
	return result
}

// CallWithin runs work and returns its error, which is a *Panic if work panics. If ctx ends before work, CallWithin returns the error of ctx.
// Then work continues in the background, and its error is dropped.
func CallWithin(ctx context.Context, work func() error) error {
	select {
	case err := <-Async(work):
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// After runs work in a goroutine when ctx ends, like context.AfterFunc. The function stop prevents the start of work and returns true. It
// returns false if work has already started, or if stop was called before. The error and the panic of work are dropped.
func After(ctx context.Context, work func() error) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = Call(work) })
}

// Group waits for goroutines. Its Wait returns the first error or panic.
type Group struct{ errgroup.Group }

// Go starts a goroutine of the group that runs work.
func (g *Group) Go(work func() error) { g.Group.Go(func() error { return Call(work) }) }

// PanicHandler logs and counts a panic. doing names the work that the panic ended. A nil PanicHandler drops the panic.
type PanicHandler func(doing string, p *Panic)

// Go starts a goroutine that runs work and reports a panic of work. doing names the work. work must defer its own cleanup.
func (t PanicHandler) Go(doing string, work func()) { go t.Run(doing, work) }

// Run runs work in the goroutine of the caller, and reports a panic of work. doing names the work.
func (t PanicHandler) Run(doing string, work func()) {
	_ = t.Report(doing, Call(func() error { work(); return nil })) // a panic was already reported
}

// Report reports err if err is a *Panic, and returns err in any case. doing names the work that failed.
func (t PanicHandler) Report(doing string, err error) error {
	if p, ok := errors.AsType[*Panic](err); ok && t != nil {
		t(doing, p)
	}
	return err
}

// ReportingGroup waits for goroutines whose panics are reported to OnPanic.
type ReportingGroup struct {
	OnPanic PanicHandler
	wait    sync.WaitGroup
}

// Go starts a goroutine of the group that runs work. doing names the work in the report of a panic.
func (c *ReportingGroup) Go(doing string, work func()) {
	c.wait.Go(func() { c.OnPanic.Run(doing, work) })
}

// Wait returns when all goroutines of the group have ended.
func (c *ReportingGroup) Wait() { c.wait.Wait() }

// WaitWithin returns nil when all goroutines of the group have ended, or the error of ctx if ctx ends first.
func (c *ReportingGroup) WaitWithin(ctx context.Context) error {
	return CallWithin(ctx, func() error { c.Wait(); return nil })
}
