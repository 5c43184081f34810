// Values that the page shows and that change: a component that uses one is drawn again.
import { useEffect, useReducer } from "preact/hooks";

export function signal(first) {
    const users = new Set();
    let now = first;
    return {
        users,
        get value() { return now; },
        set value(next) { now = next; users.forEach((again) => again()); },
    };
}

export function use(...signals) {
    const [, again] = useReducer((n) => n + 1, 0);
    useEffect(() => {
        signals.forEach((s) => s.users.add(again));
        return () => signals.forEach((s) => s.users.delete(again));
    }, []);
    return signals.map((s) => s.value);
}

// Ask now and every so many milliseconds while the component is shown.
export function useEvery(ms, what, inputs = []) {
    useEffect(() => {
        let over = false, timer;
        const run = async () => {
            await what();
            if (!over) timer = setTimeout(run, ms);
        };
        run();
        return () => { over = true; clearTimeout(timer); };
    }, inputs);
}
