package main

// operatorsMistakes returns the planted mistakes in the operators' API, its Go client, the dashboard, the gate and
// the command line.
func operatorsMistakes() []Mistake {
	return []Mistake{
		{
			Package: "operators", Func: "pools.go", Tests: []string{"operators/api"},
			Old:    `id:"releaseSlot" role:"admin"`,
			New:    `id:"releaseSlot" role:"operator"`,
			Breaks: "an operator may release a slot by force",
		},
		{
			Package: "store", Func: "session.applyPause",
			Old:    `paused_by = $3)`,
			New:    `TRUE)`,
			Breaks: "an operator who resumes his own pauses ends the pauses of others",
		},
		{
			Package: "operators/api", Func: "waitingOperations.summarize",
			Old:    `p.Code == decision.CodeFull && recent != nil && recent.ManyAttemptsFailed`,
			New:    `false`,
			Breaks: "a higher capacity is advised while the external system fails",
		},
		{
			Package: "operators/api", Func: "Operator.checkRights",
			Old:    `store.Covers(patterns[row.Scope], ctx.Param(row.Scope))`,
			New:    `store.Covers(append(patterns["pool"], patterns["set"]...), ctx.Param(row.Scope))`,
			Breaks: "a caller's token for a limit set opens the pool of the same name",
		},
		{
			Package: "operators/gate", Func: "Gate.CheckToken",
			Old:    `attempt.Token != "" && errors.Is(err, devices.ErrUnauthenticated)`,
			New:    `attempt.Token != "" && errors.Is(err, devices.ErrForbidden)`,
			Breaks: "a wrong operator token does not count towards the lock-out of its address",
		},
		{
			Package: "operators/api", Func: "handleIdempotencyKey",
			Old:    `url.RequestURI()`,
			New:    `url.Path`,
			Breaks: "a request with another query gets the first answer of its Idempotency-Key",
		},
		{
			Package: "operators/api", Func: "handleIdempotencyKey",
			Old:    `Owner: operatorOf(ctx.Context()).Token,`,
			New:    ``,
			Breaks: "two tokens that use the same Idempotency-Key get the answers of each other",
		},
		{
			Package: "operators/api", Func: "listPage.continueAfter",
			Old:    `searched.More`,
			New:    `searched.More && len(p.entries) > 0`,
			Breaks: "a list ends at its first page without a match",
		},
		{
			Package: "operators/api", Func: "readInParts",
			Old:    `entries = append(entries, part...) if len(part) < limit { return entries, false, nil }`,
			New:    `if len(part) < limit { return entries, false, nil }; entries = append(entries, part...)`,
			Breaks: "a list leaves out its last entries",
		},
		{
			Package: "operators/api", Func: "writeStreamWith",
			Old:    `panic(http.ErrAbortHandler)`,
			New:    `return`,
			Breaks: "an export that failed half-way ends as if it were complete",
		},
		{
			Package: "operators/api", Func: "longBodyReader.Read",
			Old:    `r.left < 0`,
			New:    `r.left <= 0`,
			Breaks: "a body of exactly the largest size is refused",
		},
		{
			Package: "operators/api", Func: "eventOperations.followEvents",
			Old:    `err != nil || !operator.May(roleViewer)`,
			New:    `err == nil && !operator.May(roleViewer)`,
			Breaks: "a live stream of events goes on after its token was revoked",
		},
		{
			Package: "operators/api", Func: "asDependencyProblem",
			Old:    `codeOutcomeUnknown`,
			New:    `codeUnavailable`,
			Breaks: "a request that may have been done is answered as one that changed nothing",
		},
		{
			Package: "operators/web", Func: "withSecurityHeaders",
			Old:    `http.NewCrossOriginProtection().Handler(next)`,
			New:    `http.Handler(next)`,
			Breaks: "another site may send the forms of the dashboard",
		},
		{
			Package: "operators/web", Func: "sessionCookie",
			Old:    `HttpOnly: true,`,
			New:    ``,
			Breaks: "scripts may read the session cookie",
		},
		{
			Package: "operators/web", Func: "streams.isSessionValid",
			Old:    `errors.Is(err, errSignedOut) || err == nil && who.Role != role`,
			New:    `err == nil && who.Role != role`,
			Breaks: "an open page is updated after its session has ended",
		},
		{
			Package: "operators/web", Func: "authenticator.startSession",
			Old:    `!form.Link`,
			New:    `true`,
			Breaks: "a wrong sign-in link counts as a guess, so any web page can lock an address out",
		},
		{
			Package: "operators/web", Func: "site.readForm",
			Old:    `!s.mayOfferActions(r, requiredRole)`,
			New:    `!visitorOf(r.Context()).May(requiredRole)`,
			Breaks: "a read-only dashboard changes something if a form is sent to it",
		},
		{
			Package: "operators/web", Func: "newTimesRenderer",
			Old:    `template.HTMLEscapeString(text)`,
			New:    `text`,
			Breaks: "text of operators and devices is shown as HTML",
		},
		{
			Package: "operators/web", Func: "assets/live.js",
			Old:    `const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });`,
			New:    `const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long", timeZone: "UTC" });`,
			Breaks: "the dashboard shows times in UTC to a reader in another time zone",
		},
		{
			Package: "operators/gate", Func: "clientAddress",
			Old:    `range slices.Backward(hops)`,
			New:    `range hops`,
			Breaks: "a client behind a trusted proxy chooses the address for which its wrong tokens count",
		},
		{
			Package: "operators/gate", Func: "Gate.CountRefusal",
			Old:    `refusal.EntryPoint == API || refusal.EntryPoint == SignIn`,
			New:    `refusal.EntryPoint == API`,
			Breaks: "a refused sign-in leaves no event",
		},
		{
			Package: "operators", Func: "Client.sendWithRetries",
			Old:    `request.NoRetry || request.Method != http.MethodGet && request.Key == "" && !request.Idempotent`,
			New:    `request.NoRetry`,
			Breaks: "the client sends a change without an Idempotency-Key twice",
		},
		{
			Package: "operators", Func: "Client.List",
			Old:    `if next == "" {`,
			New:    `if next == "" || len(page) == 0 {`,
			Breaks: "the client ends a list at an empty page that has a token",
		},
		{
			Package: "operators", Func: "Leases.callForLease",
			Old:    `sentAt := time.Now() err := c.client.Do(ctx, request, &got)`,
			New:    `err := c.client.Do(ctx, request, &got); sentAt := time.Now()`,
			Breaks: "the client counts a lease from the answer, so it uses the slot after the lease has ended",
			Tests:  []string{"operators", "cmd/dispatcher"},
		},
		{
			Package: "operators", Func: "Leases.leaveQueue",
			Old:    `context.WithTimeout(context.WithoutCancel(ctx), responseGrace)`,
			New:    `context.WithTimeout(ctx, responseGrace)`,
			Breaks: "a caller that is interrupted keeps its position in line",
			Tests:  []string{"operators", "cmd/dispatcher"},
		},
		{
			Package: "cmd/dispatcher", Func: "leaseKeeper.commandEnvironment",
			Old:    `"DISPATCHER_TOKEN", "DISPATCHER_TOKEN_FILE"`,
			New:    `"DISPATCHER_TOKEN"`,
			Breaks: "a command of dispatcher run learns where the caller's token is",
		},
		{
			Package: "cmd/dispatcher", Func: "leaseKeeper.keepWhileRunning",
			Old:    `k.remainingTime() <= k.grace && k.lossReason == nil`,
			New:    `k.remainingTime() <= 0 && k.lossReason == nil`,
			Breaks: "the exit status of dispatcher run does not say that the command was ended because its lease was lost",
		},
		{
			Package: "cmd/dispatcher", Func: "batchWatch.requireSuccess",
			Old:    `w.last.countUnsuccessful(), w.last.Counts`,
			New:    `w.last.FailedTasks(), w.last.Counts`,
			Breaks: "batches create --wait exits with 0 if tasks were cancelled or expired",
		},
		{
			Package: "cmd/dispatcher", Func: "console.confirm",
			Old:    `answer != "y" && answer != "yes"`,
			New:    `answer != "" && answer != "y" && answer != "yes"`,
			Breaks: "an empty answer confirms what cannot be undone",
		},
		{
			Package: "cmd/dispatcher", Func: "operatorFlags.withServerAndToken",
			Old:    `config.URL == "" && o.context == ""`,
			New:    `config.URL == ""`,
			Breaks: "a command with --context goes to the installation of DISPATCHER_URL",
		},
	}
}
