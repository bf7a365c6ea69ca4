// Three methods use 60, 30 and 10 percent of the CPU time.
public class Shares {
    static volatile long sink;

    static void sixty() { sink += mix(6000); }

    static void thirty() { sink += mix(3000); }

    static void ten() { sink += mix(1000); }

    static long mix(int turns) {
        long x = turns;
        for (int i = 0; i < 20 * turns; i++) {
            x ^= x << 13;
            x ^= x >>> 7;
            x ^= x << 17;
        }
        return x;
    }

    public static void main(String[] args) {
        while (true) {
            sixty();
            thirty();
            ten();
        }
    }
}
