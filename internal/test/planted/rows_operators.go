package main

// operatorsMistakes returns the mistakes in the operators' API, its Go client, the dashboard, the gate and the command line.
func operatorsMistakes() []Mistake {
	return []Mistake{
		{
			Package: "operators/api", Func: "pools.register",
			Old:    `"Take a slot back from its holder", roleAdmin`,
			New:    `"Take a slot back from its holder", roleOperator`,
			Breaks: "an operator may release a slot by force",
		},
		{
			Package: "operators/api", Func: "Operator.mayDo",
			Old:    `store.Covers(o.pools, ctx.Param("pool")) || store.Covers(o.sets, ctx.Param("set"))`,
			New:    `store.Covers(o.pools, ctx.Param("pool")+ctx.Param("set")) || store.Covers(o.sets, ctx.Param("pool")+ctx.Param("set"))`,
			Breaks: "a caller's token for a limit set opens the pool of the same name",
		},
		{
			Package: "operators/api", Func: "authenticator.asker",
			Old:    `token != "" && errors.Is(err, devices.ErrUnauthenticated)`,
			New:    `token != "" && errors.Is(err, devices.ErrForbidden)`,
			Breaks: "a wrong operator token does not count towards the lock-out of its address",
		},
		{
			Package: "operators/api", Func: "once",
			Old:    `url.RequestURI()`,
			New:    `url.Path`,
			Breaks: "a request with another query gets the first answer of its Idempotency-Key",
		},
		{
			Package: "operators/api", Func: "once",
			Old:    `Owner: operatorOf(ctx.Context()).Token,`,
			New:    ``,
			Breaks: "two tokens that use the same Idempotency-Key get the answers of each other",
		},
		{
			Package: "operators/api", Func: "pageOf.behind",
			Old:    `stretch.More`,
			New:    `stretch.More && len(p.entries) > 0`,
			Breaks: "a list ends at its first page without a match",
		},
		{
			Package: "operators/api", Func: "inParts",
			Old:    `list = append(list, part...) if len(part) < limit { return list, false, nil }`,
			New:    `if len(part) < limit { return list, false, nil }; list = append(list, part...)`,
			Breaks: "a list leaves out its last entries",
		},
		{
			Package: "operators/api", Func: "streamBy",
			Old:    `panic(http.ErrAbortHandler)`,
			New:    `return`,
			Breaks: "an export that failed half-way ends as if it were complete",
		},
		{
			Package: "operators/api", Func: "patientReader.Read",
			Old:    `r.left < 0`,
			New:    `r.left <= 0`,
			Breaks: "a body of exactly the largest size is refused",
		},
		{
			Package: "operators/api", Func: "events.follow",
			Old:    `err != nil || !who.May(roleViewer)`,
			New:    `err == nil && !who.May(roleViewer)`,
			Breaks: "a live stream of events goes on after its token was revoked",
		},
		{
			Package: "operators/api", Func: "asLedgerProblem",
			Old:    `codeOutcomeUnknown`,
			New:    `codeUnavailable`,
			Breaks: "a request that may have been done is answered as one that changed nothing",
		},
		{
			Package: "operators/web", Func: "hardened",
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
			Package: "operators/web", Func: "streams.stillThere",
			Old:    `errors.Is(err, errSignedOut) || err == nil && who.Role != role`,
			New:    `err == nil && who.Role != role`,
			Breaks: "an open page is updated after its session has ended",
		},
		{
			Package: "operators/web", Func: "door.enter",
			Old:    `!form.Link`,
			New:    `true`,
			Breaks: "a wrong sign-in link counts as a guess, so any web page can lock an address out",
		},
		{
			Package: "operators/web", Func: "site.act",
			Old:    `!s.may(r, role)`,
			New:    `!visitorOf(r.Context()).May(role)`,
			Breaks: "a read-only dashboard changes something if a form is sent to it",
		},
		{
			Package: "operators/web", Func: "timed",
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
			Package: "operators/gate", Func: "client",
			Old:    `range slices.Backward(hops)`,
			New:    `range hops`,
			Breaks: "a client behind a trusted proxy chooses the address for which its wrong tokens count",
		},
		{
			Package: "operators/gate", Func: "Gate.tell",
			Old:    `r.At == API || r.At == SignIn`,
			New:    `r.At == API`,
			Breaks: "a refused sign-in leaves no event",
		},
		{
			Package: "operators", Func: "Client.again",
			Old:    `r.Once || r.Method != http.MethodGet && r.Key == "" && !r.Again`,
			New:    `r.Once`,
			Breaks: "the client sends a change without an Idempotency-Key twice",
		},
		{
			Package: "operators", Func: "Client.List",
			Old:    `if next == "" {`,
			New:    `if next == "" || len(page) == 0 {`,
			Breaks: "the client ends a list at an empty page that has a token",
		},
		{
			Package: "operators", Func: "Leases.timed",
			Old:    `asked := time.Now() err := c.client.Do(ctx, r, &got)`,
			New:    `err := c.client.Do(ctx, r, &got); asked := time.Now()`,
			Breaks: "the client counts a lease from the answer, so it uses the slot after the lease has ended",
			Tests:  []string{"operators", "cmd/dispatcher"},
		},
		{
			Package: "operators", Func: "Leases.giveUp",
			Old:    `context.WithTimeout(context.WithoutCancel(ctx), patience)`,
			New:    `context.WithTimeout(ctx, patience)`,
			Breaks: "a caller that is interrupted keeps its position in line",
			Tests:  []string{"operators", "cmd/dispatcher"},
		},
		{
			Package: "cmd/dispatcher", Func: "keeper.environment",
			Old:    `"DISPATCHER_TOKEN", "DISPATCHER_TOKEN_FILE"`,
			New:    `"DISPATCHER_TOKEN"`,
			Breaks: "a command of dispatcher run learns where the caller's token is",
		},
		{
			Package: "cmd/dispatcher", Func: "keeper.keep",
			Old:    `k.rest() <= k.grace && k.lost == nil`,
			New:    `k.rest() <= 0 && k.lost == nil`,
			Breaks: "the exit status of dispatcher run does not say that the command was ended because its lease was lost",
		},
		{
			Package: "cmd/dispatcher", Func: "batchWatch.requireSuccess",
			Old:    `w.last.unsuccessful(), w.last.Counts`,
			New:    `w.last.Failed(), w.last.Counts`,
			Breaks: "batches create --wait exits with 0 if tasks were cancelled or expired",
		},
		{
			Package: "cmd/dispatcher", Func: "console.confirm",
			Old:    `answer != "y" && answer != "yes"`,
			New:    `answer != "" && answer != "y" && answer != "yes"`,
			Breaks: "an empty answer confirms what cannot be undone",
		},
		{
			Package: "cmd/dispatcher", Func: "operator.destination",
			Old:    `config.URL == "" && o.context == ""`,
			New:    `config.URL == ""`,
			Breaks: "a command with --context goes to the installation of DISPATCHER_URL",
		},
	}
}
